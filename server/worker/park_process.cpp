#include "server/worker/park_process.h"

#include <cstdio>
#include <cstdlib>

#include <cuda.h>
#include <dlfcn.h>

#include "common/base/log.h"
#include "server/driver/driver_loader.h"
#include "server/sandbox/device_scope.h"
#include "server/sandbox/isolation.h"

namespace rcuda::server {
namespace {

constexpr char kPark[] = "park:";
constexpr char kWake[] = "wake:";

// The session's work has ended before the lock, so this is ample.
constexpr unsigned kLockTimeoutMs = 10'000;

struct Checkpoints {
  decltype(&cuCheckpointProcessLock) lock = nullptr;
  decltype(&cuCheckpointProcessCheckpoint) checkpoint = nullptr;
  decltype(&cuCheckpointProcessRestore) restore = nullptr;
  decltype(&cuCheckpointProcessUnlock) unlock = nullptr;
};

// Null members if the driver lacks them.
Checkpoints find_checkpoints(const LoadedDriver& driver) {
  void* const library = ::dlopen(driver.path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  Checkpoints found;
  if (!library) return found;
  const auto find = [&]<typename Function>(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
  };
  find(found.lock, "cuCheckpointProcessLock");
  find(found.checkpoint, "cuCheckpointProcessCheckpoint");
  find(found.restore, "cuCheckpointProcessRestore");
  find(found.unlock, "cuCheckpointProcessUnlock");
  return found;
}

ParkExit say(ParkExit how, const LoadedDriver& driver, const char* function, CUresult result) {
  const char* name = nullptr;
  if (driver.table.cuGetErrorName) (void)driver.table.cuGetErrorName(result, &name);
  const char* const remedy =
      result == CUDA_ERROR_NOT_SUPPORTED
          ? ": the driver cannot park a process that has managed memory or memory of another "
            "process, or that uses MPS or MIG"
      : result == CUDA_ERROR_NOT_READY     ? ": work of the session did not end in time"
      : result == CUDA_ERROR_OUT_OF_MEMORY ? ": there is not enough memory"
                                           : "";
  std::printf("%s returned %s%s\n", function, name ? name : std::to_string(result).c_str(), remedy);
  return how;
}

ParkExit park(const LoadedDriver& driver, const Checkpoints& checkpoints, pid_t worker) {
  CUcheckpointLockArgs limit{};
  limit.timeoutMs = kLockTimeoutMs;
  CUresult result = checkpoints.lock(worker, &limit);
  if (result != CUDA_SUCCESS) {
    (void)checkpoints.unlock(worker, nullptr);  // in case it is locked nevertheless
    return say(ParkExit::kRefused, driver, "cuCheckpointProcessLock", result);
  }
  result = checkpoints.checkpoint(worker, nullptr);
  if (result == CUDA_SUCCESS) return ParkExit::kDone;
  const bool runs = checkpoints.unlock(worker, nullptr) == CUDA_SUCCESS;
  return say(runs ? ParkExit::kRefused : ParkExit::kBroken, driver, "cuCheckpointProcessCheckpoint",
             result);
}

ParkExit wake(const LoadedDriver& driver, const Checkpoints& checkpoints, pid_t worker) {
  CUresult result = checkpoints.restore(worker, nullptr);
  if (result != CUDA_SUCCESS) {
    return say(ParkExit::kBroken, driver, "cuCheckpointProcessRestore", result);
  }
  result = checkpoints.unlock(worker, nullptr);
  if (result == CUDA_SUCCESS) return ParkExit::kDone;
  return say(ParkExit::kBroken, driver, "cuCheckpointProcessUnlock", result);
}

}  // namespace

std::string park_argument(ParkTask task, pid_t worker) {
  return (task == ParkTask::kPark ? kPark : kWake) + std::to_string(worker);
}

int run_park_process(const Settings& settings, const std::string& argument) {
  set_log_name("rcuda-park");
  const bool parks = argument.starts_with(kPark);
  const size_t colon = argument.find(':');
  const int worker = colon == argument.npos ? 0 : std::atoi(argument.c_str() + colon + 1);
  // A worker that cannot be woken has lost its memory.
  const ParkExit without = parks ? ParkExit::kRefused : ParkExit::kBroken;
  const auto run = [&] {
    const Result<LoadedDriver> driver = load_driver(settings.driver.get(), gpu_nodes());
    if (!driver.ok()) {
      std::printf("%s\n", driver.status().message().c_str());
      return without;
    }
    if (const Status became = become_user_of(worker); !became.ok()) {
      std::printf("%s\n", became.message().c_str());
      return without;
    }
    const Checkpoints checkpoints = find_checkpoints(*driver);
    if (!checkpoints.unlock) {
      std::printf("%s cannot park processes: install NVIDIA driver 570 or later\n",
                  driver->path.c_str());
      return without;
    }
    return parks ? park(*driver, checkpoints, worker) : wake(*driver, checkpoints, worker);
  };
  const ParkExit how = run();
  std::fflush(stdout);
  std::_Exit(static_cast<int>(how));  // the driver's threads still run
}

}  // namespace rcuda::server
