// Counts the host functions that workers of this process launch (session_harness.h).
//
// Construct the object before the session and destroy it after the session. Only one object of this
// class may exist at a time.
#pragma once

#include <atomic>

#include "tests/support/session_harness.h"

namespace rcuda::test {

class CountedHostFunctions {
 public:
  CountedHostFunctions() {
    launch_ = TestDriver::get().table.cuLaunchHostFunc;
    count_ = 0;
    TestDriver::get().table.cuLaunchHostFunc = [](CUstream stream, CUhostFn run, void* with) {
      ++count_;
      return launch_(stream, run, with);
    };
  }
  ~CountedHostFunctions() { TestDriver::get().table.cuLaunchHostFunc = launch_; }
  CountedHostFunctions(const CountedHostFunctions&) = delete;
  CountedHostFunctions& operator=(const CountedHostFunctions&) = delete;
  int count() const { return count_; }

 private:
  static inline decltype(api::DriverTable::cuLaunchHostFunc) launch_;
  static inline std::atomic<int> count_;
};

}  // namespace rcuda::test
