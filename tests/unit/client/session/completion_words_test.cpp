#include "client/session/completion_words.h"

#include <thread>

#include <gtest/gtest.h>
#include <pthread.h>

namespace rcuda::client {
namespace {

constexpr uint32_t kForWaits = 1024, kCount = kForWaits + 2;

// The GPU writes only words with low indices, so waits must get these words.
TEST(CompletionWords, WaitsHaveTheLowestWordsWhateverElseIsTaken) {
  CompletionWords words(kCount);
  EXPECT_EQ(words.acquire_spare()->index, kForWaits);
  EXPECT_EQ(words.acquire_spare()->index, kForWaits + 1);
  EXPECT_FALSE(words.acquire_spare());
  const Word first = words.acquire(), second = words.acquire();
  EXPECT_EQ(first.index, 0u);
  EXPECT_EQ(second.index, 1u);
  words.release(first);
  EXPECT_FALSE(words.acquire_spare());
  EXPECT_EQ(words.acquire().index, 0u);
}

TEST(CompletionWords, AWaitTakesAnyWordIfTheOthersAreTakenAndGivesItBack) {
  CompletionWords words(kCount);
  for (uint32_t i = 0; i < kForWaits; ++i) words.acquire();
  Word word = words.acquire();
  EXPECT_EQ(word.index, kForWaits);
  word.sequence = 7;
  words.release(word);
  EXPECT_EQ(words.acquire_spare()->sequence, 7u);
}

TEST(CompletionWords, ACancelledThreadStillGetsItsWord) {
  CompletionWords words(kCount);
  for (uint32_t i = 0; i < kCount; ++i) words.acquire();
  bool taken = false;
  std::thread thread([&] {
    words.acquire();
    taken = true;
  });
  ::pthread_cancel(thread.native_handle());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // acquire() finds no word yet
  words.release({3, 0});
  thread.join();
  EXPECT_TRUE(taken);
}

}  // namespace
}  // namespace rcuda::client
