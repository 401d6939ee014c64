// A worker that does not disappear when it is killed, like a worker that is stuck in a driver.
// Another process traces it, and detaches only when the test has ended.
#include <poll.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "server/protocol/reports.h"

namespace {

constexpr int kControl = 3;
constexpr int kReports = 4;

// Runs in another process: traces its parent until `test` has ended.
[[noreturn]] void hold(pid_t test, int told) {
  ::close(kControl);
  const bool holds = ::ptrace(PTRACE_SEIZE, ::getppid(), nullptr, nullptr) == 0;
  [[maybe_unused]] const ssize_t written = ::write(told, &holds, sizeof holds);
  pollfd ended{static_cast<int>(::syscall(SYS_pidfd_open, test, 0)), POLLIN, 0};
  if (holds && ended.fd >= 0) ::poll(&ended, 1, -1);
  ::_exit(0);
}

}  // namespace

int main() {
  const pid_t test = ::getppid();
  int pipe[2];
  if (::pipe(pipe) != 0) return 1;
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  if (::fork() == 0) hold(test, pipe[1]);
  bool held = false;
  if (::read(pipe[0], &held, sizeof held) != sizeof held || !held) return 1;
  rcuda::server::WorkerReady offer;
  offer.driver = "none";
  if (!send_report(kReports, offer, rcuda::Deadline::max()).ok()) return 1;
  for (;;) ::pause();
}
