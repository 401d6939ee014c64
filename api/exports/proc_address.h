// cuGetProcAddress: from a function's base name and a CUDA version to the symbol that had this name
// in that version. "cuMemAlloc" at 3020 and later is cuMemAlloc_v2, before that cuMemAlloc.
//
// A driver has the symbols of its own version and of earlier ones. cuda.h says that a request for a
// later version than the driver's is CUDA_ERROR_INVALID_VALUE, but runtimes make such requests
// (cudaGetDriverEntryPoint always names the runtime's own version) and work with older drivers. So
// it is refused only where the symbol has changed in between: the caller has the newer one's
// prototype in mind.
//
// Any thread. The first request for what a driver may lack may wait for find_driver_version();
// nothing else blocks. The entry point cuGetProcAddress_v2 is defined here, weakly.
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
  bool outdated = false;  // in `version` it was another symbol, which the driver lacks
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
};
// `version` selects the newest symbol that is not newer; later versions than any select the newest.
ProcAddress find_proc(const char* name, int version, bool per_thread);

}  // namespace rcuda::api
