// ThreadLimit: a limit on processes that is reached. Threads that std::thread starts beyond `more`
// are refused with EAGAIN, as the kernel refuses them, until the limit goes.
//
// Programs that link this (rcuda_test_threads) have std::thread's start wrapped by the linker. One
// limit at a time.
#pragma once

namespace rcuda::test {

class ThreadLimit {
 public:
  enum class Of { kThisThread, kProcess };  // whose starts are counted

  explicit ThreadLimit(int more, Of whose = Of::kThisThread);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;

  int refused() const;
};

}  // namespace rcuda::test
