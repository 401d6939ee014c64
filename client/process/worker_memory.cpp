#include "client/process/worker_memory.h"

#include <utility>

#include "client/process/process.h"
#include "client/session/session.h"
#include "common/base/log.h"

namespace rcuda::client {
namespace {

const char* name_of(Placement placement) {
  switch (placement) {
    case Placement::kDevice:
      return "device memory";
    case Placement::kDeviceAsync:
      return "memory of a pool or graph";
    case Placement::kGlobal:
      return "a variable";
    case Placement::kManaged:
      return "managed memory";
    case Placement::kMapped:
      return "mapped memory";
    case Placement::kHost:
    case Placement::kRegistered:
      break;
  }
  return "host memory";
}

}  // namespace

CUresult record_memory(Allocation allocation) {
  Session& session = *allocation.session;
  const char* const name = name_of(allocation.placement);
  const uint64_t base = allocation.base;
  if (!session.accepts(base, allocation.bytes, name)) return kSessionLost;
  if (Process::get().memory().add(std::move(allocation))) return CUDA_SUCCESS;
  RCUDA_ERROR(
      "%s returned %s at 0x%llx, where this program already has memory: the call returns "
      "CUDA_ERROR_UNKNOWN; please report this",
      session.name().c_str(), name, static_cast<unsigned long long>(base));
  return CUDA_ERROR_UNKNOWN;
}

}  // namespace rcuda::client
