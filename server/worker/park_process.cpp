#include "server/worker/park_process.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <sstream>

#include <cuda.h>
#include <dlfcn.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/unique_fd.h"
#include "common/cuda/uuid_text.h"
#include "server/driver/driver_loader.h"
#include "server/sandbox/device_scope.h"
#include "server/sandbox/isolation.h"

namespace rcuda::server {
namespace {

constexpr char kPark[] = "park:";
constexpr char kWake[] = "wake:";
constexpr char kTo = '>';

// The session's work has ended before the lock, so the lock takes much less time than this limit.
constexpr unsigned kLockTimeoutMs = 10'000;

struct Checkpoints {
  decltype(&cuCheckpointProcessLock) lock = nullptr;
  decltype(&cuCheckpointProcessCheckpoint) checkpoint = nullptr;
  decltype(&cuCheckpointProcessRestore) restore = nullptr;
  decltype(&cuCheckpointProcessUnlock) unlock = nullptr;
};

// A function that the driver lacks is null.
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
      : result == CUDA_ERROR_OUT_OF_MEMORY ? ": the host or the GPU has too little free memory"
                                           : "";
  std::printf("%s returned %s%s\n", function, name ? name : std::to_string(result).c_str(), remedy);
  return how;
}

using Workers = std::vector<pid_t>;

// Whether the process has ended. An error of the driver for this process then does not matter.
bool has_ended(pid_t worker) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, worker, 0)));
  pollfd item{process.get(), POLLIN, 0};
  return !process || ::poll(&item, 1, 0) > 0;
}

// Restores the memory of the first `back` workers, and unlocks the first `locked`. Returns whether
// all of these run again or have ended.
bool undo(const Checkpoints& checkpoints, const Workers& workers, size_t back, size_t locked) {
  bool all = true;
  for (size_t i = 0; i < back; ++i) {
    all &= checkpoints.restore(workers[i], nullptr) == CUDA_SUCCESS || has_ended(workers[i]);
  }
  for (size_t i = 0; i < locked; ++i) {
    all &= checkpoints.unlock(workers[i], nullptr) == CUDA_SUCCESS || has_ended(workers[i]);
  }
  return all;
}

// Locks all workers before any loses its memory, and restores all before any is unlocked: they may
// share memory.
ParkExit park(const LoadedDriver& driver, const Checkpoints& checkpoints, const Workers& workers) {
  CUcheckpointLockArgs limit{};
  limit.timeoutMs = kLockTimeoutMs;
  for (size_t i = 0; i < workers.size(); ++i) {
    const CUresult result = checkpoints.lock(workers[i], &limit);
    if (result == CUDA_SUCCESS || has_ended(workers[i])) continue;
    (void)checkpoints.unlock(workers[i], nullptr);  // in case it is locked in spite of the error
    const bool all = undo(checkpoints, workers, 0, i);
    return say(all ? ParkExit::kRefused : ParkExit::kBroken, driver, "cuCheckpointProcessLock",
               result);
  }
  for (size_t i = 0; i < workers.size(); ++i) {
    const CUresult result = checkpoints.checkpoint(workers[i], nullptr);
    if (result == CUDA_SUCCESS || has_ended(workers[i])) continue;
    const bool all = undo(checkpoints, workers, i, workers.size());
    return say(all ? ParkExit::kRefused : ParkExit::kBroken, driver,
               "cuCheckpointProcessCheckpoint", result);
  }
  return ParkExit::kDone;
}

// "park:4711,4712,", or "wake:4711,GPU-1..>GPU-2..,GPU-2..>GPU-1..,"
void parse(const std::string& argument, Workers* workers, GpuMoves* moves) {
  const size_t colon = argument.find(':');
  std::istringstream list(colon == argument.npos ? "" : argument.substr(colon + 1));
  for (std::string item; std::getline(list, item, ',');) {
    const size_t to = item.find(kTo);
    if (to == item.npos) {
      workers->push_back(std::atoi(item.c_str()));
    } else {
      moves->emplace(item.substr(0, to), item.substr(to + 1));
    }
  }
}

// Returns a pair for each GPU that the driver shows, because the driver requires all of them.
// Returns nullopt if the driver does not report a GPU's UUID, or lacks the new GPU of a move.
std::optional<std::vector<CUcheckpointGpuPair>> pairs_for(const LoadedDriver& driver,
                                                          const GpuMoves& moves) {
  std::map<std::string, CUuuid> gpus;
  int count = 0;
  (void)driver.table.cuDeviceGetCount(&count);
  for (CUdevice device = 0; device < count; ++device) {
    CUuuid uuid{};
    if (driver.table.cuDeviceGetUuid_v2(&uuid, device) != CUDA_SUCCESS) return std::nullopt;
    std::array<uint8_t, sizeof uuid.bytes> bytes{};
    std::memcpy(bytes.data(), uuid.bytes, bytes.size());
    gpus[cuda::uuid_text(bytes)] = uuid;
  }
  std::vector<CUcheckpointGpuPair> pairs;
  for (const auto& [name, uuid] : gpus) {
    const auto move = moves.find(name);
    const auto to = gpus.find(move == moves.end() ? name : move->second);
    if (to == gpus.end()) return std::nullopt;
    pairs.push_back({uuid, to->second});
  }
  return pairs;
}

// Restores a worker, on other GPUs if `moves` names some. If the driver cannot do that, restores
// the worker on its old GPUs and sets `moved` to false.
CUresult restore(const LoadedDriver& driver, const Checkpoints& checkpoints, pid_t worker,
                 const GpuMoves& moves, bool* moved) {
  if (moves.empty()) return checkpoints.restore(worker, nullptr);
  if (auto pairs = pairs_for(driver, moves)) {
    CUcheckpointRestoreArgs arguments{};
    arguments.gpuPairs = pairs->data();
    arguments.gpuPairsCount = static_cast<unsigned>(pairs->size());
    const CUresult result = checkpoints.restore(worker, &arguments);
    if (result == CUDA_SUCCESS) return result;
    (void)say(ParkExit::kRefused, driver, "cuCheckpointProcessRestore with pairs of GPUs", result);
  } else {
    std::puts("the driver does not report all GPUs that the move names");
  }
  *moved = false;
  return checkpoints.restore(worker, nullptr);
}

ParkExit wake(const LoadedDriver& driver, const Checkpoints& checkpoints, const Workers& workers,
              const GpuMoves& moves) {
  bool moved = true;
  for (const pid_t worker : workers) {
    const CUresult result = restore(driver, checkpoints, worker, moves, &moved);
    if (result == CUDA_SUCCESS || has_ended(worker)) continue;
    return say(ParkExit::kBroken, driver, "cuCheckpointProcessRestore", result);
  }
  for (const pid_t worker : workers) {
    const CUresult result = checkpoints.unlock(worker, nullptr);
    if (result == CUDA_SUCCESS || has_ended(worker)) continue;
    return say(ParkExit::kBroken, driver, "cuCheckpointProcessUnlock", result);
  }
  return moved ? ParkExit::kDone : ParkExit::kRefused;
}

}  // namespace

std::string park_argument(ParkTask task, const std::vector<pid_t>& workers, const GpuMoves& moves) {
  std::string text = task == ParkTask::kPark ? kPark : kWake;
  for (const pid_t worker : workers) text += std::to_string(worker) + ",";
  for (const auto& [from, to] : moves) text += from + kTo + to + ",";
  return text;
}

int run_park_process(const Settings& settings, const std::string& argument) {
  set_log_name("rcuda-park");
  const bool parks = argument.starts_with(kPark);
  Workers workers;
  GpuMoves moves;
  parse(argument, &workers, &moves);
  // A park that cannot begin changes nothing. A wake that cannot begin leaves the workers without
  // their GPU memory.
  const ParkExit without = parks ? ParkExit::kRefused : ParkExit::kBroken;
  const auto run = [&] {
    const Result<LoadedDriver> driver = load_driver(settings.driver.get(), gpu_nodes());
    if (!driver.ok()) {
      std::printf("%s\n", driver.status().message().c_str());
      return without;
    }
    // Sessions that are parked together are of one user.
    const pid_t first = workers.empty() ? 0 : workers.front();
    if (const Status became = become_user_of(first); !became.ok()) {
      std::printf("%s\n", became.message().c_str());
      return without;
    }
    const Checkpoints checkpoints = find_checkpoints(*driver);
    if (!checkpoints.unlock) {
      std::printf("the driver %s cannot park processes: install NVIDIA driver 570 or later\n",
                  driver->path.c_str());
      return without;
    }
    return parks ? park(*driver, checkpoints, workers) : wake(*driver, checkpoints, workers, moves);
  };
  const ParkExit how = run();
  std::fflush(stdout);
  std::_Exit(static_cast<int>(how));  // the driver's threads still run
}

}  // namespace rcuda::server
