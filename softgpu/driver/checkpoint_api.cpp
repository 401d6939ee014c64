// cuCheckpointProcess*: the caller asks the process that it names, over a local socket.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <cuda.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/unique_fd.h"
#include "softgpu/driver/checkpoint.h"
#include "softgpu/driver/config.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/local_lookup.h"

namespace softgpu::driver::checkpoint {
namespace {

enum class Action : uint32_t { kGetState, kGetThread, kLock, kCheckpoint, kRestore, kUnlock };

constexpr int kMovesFrom = 13000;  // from driver 580 on, a restore can move memory to other GPUs

// The answer to a request. It is sent as a LookupNote.
struct Outcome {
  CUresult result = CUDA_ERROR_UNKNOWN;
  int value = 0;  // what a query returns
};
static_assert(sizeof(Outcome) <= sizeof(LookupNote));

std::string socket_of(int pid) { return "softgpu-checkpoint-" + std::to_string(pid); }

// Arguments of a request: for kLock the timeout in ms, for kCheckpoint the number of processes that
// the caller has locked, for kRestore a map of GPUs. Byte i of the map is 0 if the map does not
// name GPU i, otherwise 1 + the number of the GPU onto which GPU i's memory is restored.
GpuMap read_map(const LookupKey& arguments) {
  GpuMap gpus;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] != 0) gpus[static_cast<int>(i)] = arguments[i] - 1;
  }
  return gpus;
}

// The number of processes that this process has locked.
std::atomic<int> locked{0};

// Runs on the thread of the LookupServer. That thread is also the one that
// cuCheckpointProcessGetRestoreThreadId reports.
std::optional<LookupServer::Item> carry_out(uint32_t action, const LookupKey& arguments) {
  uint32_t number = 0;
  std::memcpy(&number, arguments.data(), sizeof number);
  Outcome outcome{CUDA_SUCCESS, 0};
  switch (static_cast<Action>(action)) {
    case Action::kGetState:
      outcome.value = state();
      break;
    case Action::kGetThread:
      outcome.value = static_cast<int>(::syscall(SYS_gettid));
      break;
    case Action::kLock:
      outcome.result = lock(std::chrono::milliseconds(number));
      break;
    case Action::kCheckpoint:
      outcome.result = checkpoint(number > 1);
      break;
    case Action::kRestore:
      outcome.result = restore(read_map(arguments));
      break;
    case Action::kUnlock:
      outcome.result = unlock();
      break;
    default:
      return std::nullopt;
  }
  LookupServer::Item item;
  std::memcpy(item.note.data(), &outcome, sizeof outcome);
  return item;
}

// Whether NVIDIA's driver could reach process `pid` from this process. In each process the driver
// makes pipes. To reach the process, the driver opens these pipes through /proc/PID/fd, which needs
// two permissions (driver 580.159):
// - to read the folder: a process of the same user has it if process `pid` is dumpable, and a
//   process with CAP_SYS_PTRACE always has it;
// - to open a pipe: the pipe's owner has it. The owner is the user of process `pid` when the driver
//   made the pipe, unless fchown() has changed the owner later.
// Tries only pipes of which process `pid` has both ends open, as it has of the driver's pipes.
bool may_reach(int pid) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  const std::unique_ptr<DIR, int (*)(DIR*)> opened(::opendir(folder.c_str()), ::closedir);
  if (!opened) return errno != EACCES;
  std::map<std::string, mode_t> pipes;  // by pipe: the access of its open ends
  while (const dirent* const entry = ::readdir(opened.get())) {
    const std::string path = folder + "/" + entry->d_name;
    char target[64] = {};
    struct stat link {};
    if (::readlink(path.c_str(), target, sizeof target - 1) < 0 ||
        !std::string_view(target).starts_with("pipe:") || ::lstat(path.c_str(), &link) != 0) {
      continue;
    }
    mode_t& access = pipes[target];
    access |= link.st_mode & (S_IRUSR | S_IWUSR);
    if (access != (S_IRUSR | S_IWUSR)) continue;
    if (!rcuda::UniqueFd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC))) return false;
  }
  return true;
}

CUresult ask(int pid, Action action, const LookupKey& arguments = {}, int* value = nullptr) {
  if (const CUresult ready = check_initialized_without_gate()) return ready;
  if (pid <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!may_reach(pid)) return CUDA_ERROR_OPERATING_SYSTEM;
  const rcuda::Result<LookupResult> answer =
      look_up_in(pid, socket_of(pid), static_cast<uint32_t>(action), arguments);
  // NVIDIA's driver also returns this for a process of another user or without CUDA.
  if (!answer.ok()) return CUDA_ERROR_INVALID_VALUE;
  Outcome outcome;
  std::memcpy(&outcome, answer->note.data(), sizeof outcome);
  if (value) *value = outcome.value;
  if (outcome.result == CUDA_SUCCESS && action == Action::kLock) ++locked;
  if (outcome.result == CUDA_SUCCESS && action == Action::kUnlock) --locked;
  return outcome.result;
}

LookupKey with_number(uint32_t number) {
  LookupKey arguments{};
  std::memcpy(arguments.data(), &number, sizeof number);
  return arguments;
}

// CUDA_ERROR_INVALID_VALUE if the pairs name a GPU that this process does not see.
CUresult write_map(const CUcheckpointRestoreArgs& args, LookupKey* arguments) {
  if (configuration().driver_version < kMovesFrom || !args.gpuPairs)
    return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < args.gpuPairsCount; ++i) {
    const Device* const from = device_with_uuid(args.gpuPairs[i].oldUuid);
    const Device* const to = device_with_uuid(args.gpuPairs[i].newUuid);
    if (!from || !to) return CUDA_ERROR_INVALID_VALUE;
    uint8_t& place = arguments->at(static_cast<size_t>(from->number()));
    if (std::exchange(place, static_cast<uint8_t>(to->number() + 1)) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

template <size_t kCount>
bool any_set(const cuuint64_t (&reserved)[kCount]) {
  for (const cuuint64_t word : reserved) {
    if (word != 0) return true;
  }
  return false;
}

}  // namespace

void serve() {
  // Makes a pipe, as NVIDIA's driver does: may_reach() looks for it. It stays open until the exit.
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    RCUDA_DEBUG("this process cannot be checkpointed: pipe2 failed: %m");
  static auto* const server = new LookupServer;  // never ends: its thread runs until the exit
  const rcuda::Status started = server->start(socket_of(::getpid()), "softgpu-check", carry_out,
                                              LookupServer::Serves::kRootToo);
  if (!started.ok())
    RCUDA_DEBUG("this process cannot be checkpointed: %s", started.message().c_str());
}

}  // namespace softgpu::driver::checkpoint

using softgpu::driver::check_initialized_without_gate;
using softgpu::driver::LookupKey;
using softgpu::driver::checkpoint::Action;
using softgpu::driver::checkpoint::any_set;
using softgpu::driver::checkpoint::ask;
using softgpu::driver::checkpoint::locked;
using softgpu::driver::checkpoint::with_number;
using softgpu::driver::checkpoint::write_map;

extern "C" {

CUresult CUDAAPI cuCheckpointProcessGetState(int pid, CUprocessState* state) {
  int value = 0;
  if (!state) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = ask(pid, Action::kGetState, {}, &value);
  if (result == CUDA_SUCCESS) *state = static_cast<CUprocessState>(value);
  return result;
}

CUresult CUDAAPI cuCheckpointProcessGetRestoreThreadId(int pid, int* tid) {
  if (!tid) return CUDA_ERROR_INVALID_VALUE;
  return ask(pid, Action::kGetThread, {}, tid);
}

CUresult CUDAAPI cuCheckpointProcessLock(int pid, CUcheckpointLockArgs* args) {
  if (args && (args->reserved0 != 0 || any_set(args->reserved1))) return CUDA_ERROR_INVALID_VALUE;
  return ask(pid, Action::kLock, with_number(args ? args->timeoutMs : 0));
}

CUresult CUDAAPI cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs*) {
  return ask(pid, Action::kCheckpoint,
             with_number(static_cast<uint32_t>(std::max(locked.load(), 0))));
}

CUresult CUDAAPI cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs* args) {
  LookupKey gpus{};
  if (args && args->gpuPairsCount != 0) {
    if (const CUresult result = check_initialized_without_gate()) return result;
    if (const CUresult result = write_map(*args, &gpus)) return result;
  }
  return ask(pid, Action::kRestore, gpus);
}

CUresult CUDAAPI cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs*) {
  return ask(pid, Action::kUnlock);
}

}  // extern "C"
