// The client against a worker whose replies are damaged: fixed parts of the fuzzer's work.
#include <cstdlib>

#include <gtest/gtest.h>

#include "tests/fuzz/replay.h"
#include "tests/fuzz/replies_target.h"

namespace rcuda::fuzz {
namespace {

// Runs in a process of its own, because the process keeps records of mirrored memory.
TEST_F(FuzzReplayTest, RepliesOfAWorker) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [] {
    replay(fuzz_replies, replies_corpus(), 1'000);
    std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace rcuda::fuzz
