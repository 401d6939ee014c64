// ThreadLimit: simulates the system's limit on threads. `more` further std::threads can start.
// Then, until the ThreadLimit is destroyed, each start of a std::thread fails with EAGAIN, as if
// the kernel had refused it.
//
// In programs that link this (rcuda_test_threads), the linker wraps the start function of
// std::thread. Only one limit may exist at a time.
#pragma once

namespace rcuda::test {

class ThreadLimit {
 public:
  // The limit applies to std::threads that the calling thread starts, or to those of all threads.
  enum class Of { kThisThread, kProcess };

  explicit ThreadLimit(int more, Of whose = Of::kThisThread);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;

  int refused() const;
};

}  // namespace rcuda::test
