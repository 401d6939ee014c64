// ThreadLimit: simulates a limit on processes that has been reached. std::thread may start `more`
// threads; further starts fail with EAGAIN, as from the kernel, until the ThreadLimit is destroyed.
//
// In programs that link this (rcuda_test_threads), the linker wraps the start function of
// std::thread. Only one limit may exist at a time.
#pragma once

namespace rcuda::test {

class ThreadLimit {
 public:
  enum class Of { kThisThread, kProcess };  // whose thread starts are counted

  explicit ThreadLimit(int more, Of whose = Of::kThisThread);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;

  int refused() const;
};

}  // namespace rcuda::test
