#include "api/exports/proc_address.h"

#include <algorithm>
#include <cstring>

#include "api/exports/driver_version.h"
#include "common/base/log.h"

namespace rcuda::api {

__attribute__((weak)) bool lacks_command(uint16_t) { return false; }

ProcAddress find_proc(const char* name, int version, bool per_thread) {
  const ProcEntry* const end = kProcTable + kProcCount;
  const ProcEntry* entry =
      std::lower_bound(kProcTable, end, name, [](const ProcEntry& candidate, const char* wanted) {
        return std::strcmp(candidate.name, wanted) < 0;
      });
  ProcAddress found;
  for (; entry != end && std::strcmp(entry->name, name) == 0; ++entry) {
    if (entry->opcode != 0 && lacks_command(entry->opcode)) continue;
    if (entry->version > version) {
      // A driver does not have symbols that were introduced after it.
      const bool is_known =
          entry->version <= kOldestDriver || entry->version <= find_driver_version();
      if (found.function == nullptr && is_known) {
        found.status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
      }
      break;
    }
    found.function = per_thread ? entry->per_thread : entry->function;
    found.status = CU_GET_PROC_ADDRESS_SUCCESS;
  }
  return found;
}

}  // namespace rcuda::api

extern "C" __attribute__((weak, visibility("default"))) CUresult cuGetProcAddress_v2(
    const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags,
    CUdriverProcAddressQueryResult* symbolStatus) {
  constexpr cuuint64_t kKnownFlags =
      CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (symbol == nullptr || pfn == nullptr || (flags & ~kKnownFlags) != 0 || flags == kKnownFlags) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Like driver 580: a request for a version later than the driver's fails, even for an older
  // symbol.
  if (cudaVersion > rcuda::api::kOldestDriver && cudaVersion > rcuda::api::find_driver_version()) {
    RCUDA_DEBUG(
        "cuGetProcAddress(%s) is refused: it requests version %d, the driver has version %d",
        symbol, cudaVersion, rcuda::api::find_driver_version());
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  const rcuda::api::ProcAddress found = rcuda::api::find_proc(symbol, cudaVersion, per_thread);
  *pfn = found.function;
  RCUDA_TRACE("cuGetProcAddress(%s, %d%s): %s", symbol, cudaVersion,
              per_thread ? ", per-thread" : "",
              found.function != nullptr                                    ? "found"
              : found.status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT ? "only in newer versions"
                                                                           : "not found");
  if (symbolStatus != nullptr) *symbolStatus = found.status;
  return CUDA_SUCCESS;
}
