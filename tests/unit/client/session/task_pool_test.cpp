// Exceptions in copies, most likely bad_alloc. The helpers use objects on the caller's stack.
#include "client/session/task_pool.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include "client/settings/settings.h"

namespace rcuda::client {
namespace {

constexpr size_t kTasks = 64;

// Runs in its own process, whose pool has two threads. Either the caller's task throws while the
// helper runs a task, or the helper's task throws.
[[noreturn]] void run_and_throw(bool in_caller) {
  ::setenv("RCUDA_COPY_THREADS", "2", 1);
  if (!load_settings().ok()) ::_exit(2);
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<bool> helper_began{false};
  std::atomic<int> begun{0}, under_way{0};
  int outcome = 1;  // no exception
  try {
    run_parallel(kTasks, [&](size_t) {
      ++begun;
      ++under_way;
      if (std::this_thread::get_id() == caller) {
        while (!helper_began) std::this_thread::yield();
        --under_way;
        if (in_caller) throw std::bad_alloc();
        return;
      }
      helper_began = true;
      if (!in_caller) {
        --under_way;
        throw std::bad_alloc();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      --under_way;
    });
  } catch (const std::bad_alloc&) {
    outcome = under_way != 0 ? 2 : in_caller && begun != 2 ? 3 : 0;
  }
  ::_exit(outcome);
}

TEST(TaskPool, AnExceptionOfTheCallerWaitsForTheHelpers) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_and_throw(true), testing::ExitedWithCode(0), "");
}

TEST(TaskPool, AnExceptionOfAHelperIsTheCallers) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_and_throw(false), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace rcuda::client
