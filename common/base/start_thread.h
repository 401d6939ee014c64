// Starts a thread, or says what is in the way: the exception of std::thread ends here, because
// what asks for threads runs inside of other people's programs. Any thread may call; nothing
// blocks. `thread` must not be running.
//
// The program's signals are not for the thread: a program that blocks a signal in all threads it
// knows of and takes it with sigwait() or a signalfd would otherwise be ended by way of this one.
#pragma once

#include <csignal>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "common/base/status.h"

namespace rcuda {

// While it lives, its thread takes no signals but those of its own faults: blocked, these would end
// the process without asking the program's handlers. Threads inherit what is blocked.
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
