// cuGetProcAddress: from a function's base name and a CUDA version to the symbol that had this name
// in that version. "cuMemAlloc" at 3020 and later is cuMemAlloc_v2, before that cuMemAlloc.
//
// A driver has the symbols of its own version and of earlier ones. A request for a later version
// than the driver's is CUDA_ERROR_INVALID_VALUE, whatever the symbol (driver 580, as cuda.h says).
//
// Any thread. The first request for a version later than kOldestDriver may wait for
// find_driver_version(); nothing else blocks. The entry point cuGetProcAddress_v2 is defined here, weakly.
#pragma once

#include <cstddef>

#include <cuda.h>

namespace rcuda::api {

struct ProcEntry {
  const char* name;
  int version;  // first CUDA version with this symbol, as 1000 * major + 10 * minor
  void* function;
  void* per_thread;  // its _ptds or _ptsz variant; the same as `function` when it has none
};
// Generated; sorted by name, then version.
extern const ProcEntry kProcTable[];
extern const size_t kProcCount;

struct ProcAddress {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
};
// `version`, the driver's or an earlier one, selects the newest symbol that is not newer.
ProcAddress find_proc(const char* name, int version, bool per_thread);

}  // namespace rcuda::api
