// Starts a thread, or returns an error that says why it could not be started. The exception of
// std::thread is caught here, because rcuda runs inside other people's programs. Any thread may
// call; nothing blocks. `thread` must not be running.
//
// The new thread blocks the program's signals. Some programs block a signal in all their threads
// and receive it with sigwait() or a signalfd. Such a signal would end the program if the kernel
// delivered it to this thread.
#pragma once

#include <csignal>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "common/base/status.h"

namespace rcuda {

// While an object of this class exists, the current thread receives only the signals of its own
// faults. If these were blocked, a fault would end the process without calling the program's
// handlers. New threads inherit the mask.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t blocked;
    ::sigfillset(&blocked);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) {
      ::sigdelset(&blocked, fault);
    }
    ::pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

template <typename Body>
Status start_thread(std::thread* thread, Body&& body) {
  try {
    const SignalsBlocked blocked;
    *thread = std::thread(std::forward<Body>(body));
    return {};
  } catch (const std::system_error& error) {
    return {Code::kOutOfMemory,
            std::string("starting a thread: ") + error.code().message() +
                "; raise the limit on processes ('ulimit -u', TasksMax= of the service, pids.max "
                "of the container's cgroup), or free memory on this host"};
  }
}

}  // namespace rcuda
