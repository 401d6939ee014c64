#include "server/daemon/pool/park_helper.h"

#include <utility>

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/driver/driver_loader.h"
#include "server/sandbox/start_process.h"

namespace rcuda::server {
namespace {

// The bounds for longest_move(). The driver moves 2 to 7 GB/s (docs/parking.md). The bounds are
// generous, because the sessions of a helper that is killed end.
constexpr auto kLongestStart = std::chrono::seconds(60);
constexpr uint64_t kLeastBytesPerSecond = 250'000'000;

}  // namespace

std::chrono::seconds longest_move(uint64_t bytes) {
  return kLongestStart + std::chrono::seconds(bytes / kLeastBytesPerSecond);
}

Result<ParkHelper> ParkHelper::start(const Settings& settings, ParkTask task,
                                     std::vector<pid_t> workers, uint64_t bytes,
                                     const GpuMoves& moves,
                                     const std::vector<std::string>& environment) {
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC | O_NONBLOCK) != 0)
    return Status::from_errno(errno, "making a pipe for the process that parks a session");
  ParkHelper helper;
  helper.says_.reset(pipe[0]);
  const UniqueFd its(pipe[1]);
  helper.workers_ = std::move(workers);
  helper.deadline_ = Clock::now() + longest_move(bytes);
  std::vector<std::string> own = settings.registry.environment();
  own.insert(own.end(), environment.begin(), environment.end());
  RCUDA_ASSIGN_OR_RETURN(
      helper.pid_,
      start_process({settings.worker_binary,
                     {"rcuda-park", kParkOption, park_argument(task, helper.workers_, moves)},
                     worker_environment(own),
                     {{its.get(), STDOUT_FILENO}, {STDERR_FILENO, STDERR_FILENO}}}));
  helper.process_.reset(static_cast<int>(::syscall(SYS_pidfd_open, helper.pid_, 0)));
  if (!helper.process_)
    return Status::from_errno(errno, "watching the process that parks a session (pidfd_open)");
  return helper;
}

ParkHelper::ParkHelper(ParkHelper&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      workers_(std::move(other.workers_)),
      process_(std::move(other.process_)),
      says_(std::move(other.says_)),
      deadline_(other.deadline_),
      is_late_(other.is_late_) {}

ParkHelper::~ParkHelper() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  // Waits for a second at most, because a process that is stuck in the driver does not end.
  for (int i = 0; i < 100 && ::waitpid(pid_, nullptr, WNOHANG) == 0; ++i) ::usleep(10'000);
}

std::optional<ParkHelper::Outcome> ParkHelper::poll() {
  int status = 0;
  const bool has_ended = pid_ >= 0 && ::waitpid(pid_, &status, WNOHANG) == pid_;
  if (has_ended) pid_ = -1;
  if (is_late_) return std::nullopt;
  if (!has_ended && Clock::now() < deadline_) return std::nullopt;
  if (!has_ended) {
    is_late_ = true;
    deadline_ = Clock::time_point::max();
    ::kill(pid_, SIGKILL);
    return Outcome{ParkExit::kBroken, "the driver did not move the GPU memory in time"};
  }
  Outcome outcome{ParkExit::kBroken, ""};
  if (WIFEXITED(status) && WEXITSTATUS(status) <= static_cast<int>(ParkExit::kBroken)) {
    outcome.how = static_cast<ParkExit>(WEXITSTATUS(status));
  }
  char text[512];
  const ssize_t bytes = ::read(says_.get(), text, sizeof text);
  if (bytes > 0) outcome.why.assign(text, static_cast<size_t>(bytes));
  while (outcome.why.ends_with('\n')) outcome.why.pop_back();
  if (outcome.why.empty() && outcome.how != ParkExit::kDone) {
    outcome.why = "the helper process ended without a message: see the server's log";
  }
  return outcome;
}

}  // namespace rcuda::server
