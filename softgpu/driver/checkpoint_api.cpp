// cuCheckpointProcess*: the caller asks the process that it names, over a local socket.
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>

#include <cuda.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/log.h"
#include "softgpu/driver/checkpoint.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/local_lookup.h"

namespace softgpu::driver::checkpoint {
namespace {

enum class Action : uint32_t { kGetState, kGetThread, kLock, kCheckpoint, kRestore, kUnlock };

// The content of a LookupServer's note.
struct Outcome {
  CUresult result = CUDA_ERROR_UNKNOWN;
  int value = 0;  // of the queries
};
static_assert(sizeof(Outcome) <= sizeof(LookupNote));

std::string socket_of(int pid) { return "softgpu-checkpoint-" + std::to_string(pid); }

// Runs on the thread of the LookupServer, which is also the restore thread.
std::optional<LookupServer::Item> carry_out(uint32_t action, const LookupKey& arguments) {
  uint32_t timeout_ms = 0;
  std::memcpy(&timeout_ms, arguments.data(), sizeof timeout_ms);
  Outcome outcome{CUDA_SUCCESS, 0};
  switch (static_cast<Action>(action)) {
    case Action::kGetState:
      outcome.value = state();
      break;
    case Action::kGetThread:
      outcome.value = static_cast<int>(::syscall(SYS_gettid));
      break;
    case Action::kLock:
      outcome.result = lock(std::chrono::milliseconds(timeout_ms));
      break;
    case Action::kCheckpoint:
      outcome.result = checkpoint();
      break;
    case Action::kRestore:
      outcome.result = restore();
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

// NVIDIA's driver reaches a process by its descriptors in /proc, which a process of its user may
// read if it is dumpable, and otherwise only one with CAP_SYS_PTRACE.
bool may_reach(int pid) {
  const std::string descriptors = "/proc/" + std::to_string(pid) + "/fd";
  return ::access(descriptors.c_str(), R_OK | X_OK) == 0 || errno != EACCES;
}

CUresult ask(int pid, Action action, uint32_t timeout_ms = 0, int* value = nullptr) {
  if (const CUresult ready = check_initialized_without_gate()) return ready;
  if (pid <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!may_reach(pid)) return CUDA_ERROR_OPERATING_SYSTEM;
  LookupKey arguments{};
  std::memcpy(arguments.data(), &timeout_ms, sizeof timeout_ms);
  const rcuda::Result<LookupResult> answer =
      look_up_in(pid, socket_of(pid), static_cast<uint32_t>(action), arguments);
  // NVIDIA's driver also returns this for a process of another user or without CUDA.
  if (!answer.ok()) return CUDA_ERROR_INVALID_VALUE;
  Outcome outcome;
  std::memcpy(&outcome, answer->note.data(), sizeof outcome);
  if (value) *value = outcome.value;
  return outcome.result;
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
  static auto* const server = new LookupServer;  // never ends: its thread runs until the exit
  const rcuda::Status started = server->start(socket_of(::getpid()), "softgpu-check", carry_out,
                                              LookupServer::Serves::kRootToo);
  if (!started.ok()) RCUDA_DEBUG("no checkpoints of this process: %s", started.message().c_str());
}

}  // namespace softgpu::driver::checkpoint

using softgpu::driver::checkpoint::Action;
using softgpu::driver::checkpoint::any_set;
using softgpu::driver::checkpoint::ask;

extern "C" {

CUresult CUDAAPI cuCheckpointProcessGetState(int pid, CUprocessState* state) {
  int value = 0;
  if (!state) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = ask(pid, Action::kGetState, 0, &value);
  if (result == CUDA_SUCCESS) *state = static_cast<CUprocessState>(value);
  return result;
}

CUresult CUDAAPI cuCheckpointProcessGetRestoreThreadId(int pid, int* tid) {
  if (!tid) return CUDA_ERROR_INVALID_VALUE;
  return ask(pid, Action::kGetThread, 0, tid);
}

CUresult CUDAAPI cuCheckpointProcessLock(int pid, CUcheckpointLockArgs* args) {
  if (args && (args->reserved0 != 0 || any_set(args->reserved1))) return CUDA_ERROR_INVALID_VALUE;
  return ask(pid, Action::kLock, args ? args->timeoutMs : 0);
}

CUresult CUDAAPI cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs*) {
  return ask(pid, Action::kCheckpoint);
}

CUresult CUDAAPI cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs* args) {
  if (args && args->gpuPairsCount != 0) return CUDA_ERROR_NOT_SUPPORTED;
  return ask(pid, Action::kRestore);
}

CUresult CUDAAPI cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs*) {
  return ask(pid, Action::kUnlock);
}

}  // extern "C"
