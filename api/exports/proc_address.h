// cuGetProcAddress: finds the symbol that a function's base name had in a CUDA version.
// "cuMemAlloc" is cuMemAlloc_v2 from 3020 on, and cuMemAlloc before.
//
// A driver has the symbols of its own version and of earlier ones. A request for a version later
// than the driver's fails with CUDA_ERROR_INVALID_VALUE, whatever the symbol: driver 580 does this,
// too, and cuda.h documents it.
//
// Any thread. A request may wait for find_driver_version() if its version, or that of the name's
// next symbol, is later than kOldestDriver; nothing else blocks. This folder defines the entry
// point cuGetProcAddress_v2, weakly.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda.h>

namespace rcuda::api {

struct ProcEntry {
  const char* name;
  int version;  // first CUDA version with this symbol, as 1000 * major + 10 * minor
  void* function;
  void* per_thread;  // its _ptds or _ptsz variant; equals `function` if it has none
  uint16_t opcode;   // of the command that the function sends; 0: none of its own
};
// Generated; sorted by name, then version.
extern const ProcEntry kProcTable[];
extern const size_t kProcCount;

struct ProcAddress {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
};
// Selects the newest symbol that is not newer than `version`, which must not be later than the
// driver's version.
ProcAddress find_proc(const char* name, int version, bool per_thread);

// Whether a server runs another build that cannot execute the command. The function of this command
// then does not exist, as with an older driver. False until the servers are known. The weak
// definition in this folder returns false.
bool lacks_command(uint16_t opcode);

}  // namespace rcuda::api
