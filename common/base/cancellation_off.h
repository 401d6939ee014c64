// While it exists, pthread_cancel() does not end the calling thread.
//
// rcuda runs on the threads of programs that may cancel them. A cancellation unwinds the stack from
// whatever system call blocks, through functions that must finish what they have begun (a frame in
// a ring, a lock) or are noexcept, which would end the process. The thread is cancelled after the
// call instead, as with a local driver.
#pragma once

#include <pthread.h>

namespace rcuda {

class CancellationOff {
 public:
  CancellationOff() { ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  // A thread that may be cancelled anywhere (PTHREAD_CANCEL_ASYNCHRONOUS) is unwound from here.
  ~CancellationOff() noexcept(false) { ::pthread_setcancelstate(before_, nullptr); }
  CancellationOff(const CancellationOff&) = delete;
  CancellationOff& operator=(const CancellationOff&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace rcuda
