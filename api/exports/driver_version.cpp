#include "api/exports/driver_version.h"

#include <mutex>
#include <set>

#include "common/base/log.h"

namespace rcuda::api {

CUresult lacking(const char* name, int version) {
  static std::mutex mutex;
  static auto* logged = new std::set<const char*>;
  const int driver = internal::driver_version.load(std::memory_order_relaxed);
  std::lock_guard lock(mutex);
  if (logged->insert(name).second) {
    RCUDA_WARN(
        "%s needs CUDA %d.%d, but the driver has CUDA %d.%d: the call returns "
        "CUDA_ERROR_NOT_SUPPORTED; install a newer driver, or a CUDA of the driver's version",
        name, version / 1000, version % 1000 / 10, driver / 1000, driver % 1000 / 10);
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

__attribute__((weak)) int find_driver_version() {
  return internal::driver_version.load(std::memory_order_relaxed);
}

}  // namespace rcuda::api
