// CancellationOff: while the object exists, pthread_cancel() does not end the calling thread.
//
// rcuda runs on the threads of programs that may cancel them. A cancellation unwinds the stack from
// any blocking system call. Some of the functions on that stack must finish their work: complete a
// frame in a ring, release a lock. Other functions are noexcept, so the process would end. With
// this object, the thread is cancelled after its CUDA call, as with a local driver.
#pragma once

#include <pthread.h>

namespace rcuda {

class CancellationOff {
 public:
  CancellationOff() { ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  // noexcept(false): with PTHREAD_CANCEL_ASYNCHRONOUS, a pending cancellation unwinds the stack
  // from this call.
  ~CancellationOff() noexcept(false) { ::pthread_setcancelstate(before_, nullptr); }
  CancellationOff(const CancellationOff&) = delete;
  CancellationOff& operator=(const CancellationOff&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace rcuda
