#include "common/base/async_lookup.h"

#include <condition_variable>
#include <mutex>
#include <string>

#include <gtest/gtest.h>
#include <poll.h>

namespace rcuda {
namespace {

using Lookup = AsyncLookup<int, std::string>;

// A lookup whose answer comes when the test provides it.
class Slow {
 public:
  Lookup::Question question() {
    return [this] {
      std::unique_lock lock(mutex_);
      ++asked_;
      changed_.notify_all();
      changed_.wait(lock, [&] { return given_ > 0; });
      --given_;
      return std::string("answer");
    };
  }
  void wait_until_asked(int times) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return asked_ >= times; });
  }
  void give() {
    std::lock_guard lock(mutex_);
    ++given_;
    changed_.notify_all();
  }
  int asked() {
    std::lock_guard lock(mutex_);
    return asked_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int asked_ = 0;
  int given_ = 0;
};

bool is_readable(const Lookup& lookup, int timeout_ms) {
  pollfd item{lookup.descriptor(), POLLIN, 0};
  return ::poll(&item, 1, timeout_ms) == 1;
}

TEST(AsyncLookupTest, AnAnswerIsTakenOnceAndNobodyWaits) {
  Slow slow;
  Lookup lookup(1);
  ASSERT_TRUE(lookup.ask(1, slow.question()).ok());
  EXPECT_TRUE(lookup.is_asked(1));
  EXPECT_FALSE(lookup.take(1));
  EXPECT_FALSE(is_readable(lookup, 0));
  slow.give();
  ASSERT_TRUE(is_readable(lookup, 60'000));
  lookup.acknowledge();
  EXPECT_FALSE(is_readable(lookup, 0));
  EXPECT_EQ(lookup.take(1), "answer");
  EXPECT_FALSE(lookup.take(1));
  EXPECT_FALSE(lookup.is_asked(1));
}

TEST(AsyncLookupTest, OnlyAFewQuestionsRunAtTheSameTime) {
  Slow slow;
  Lookup lookup(2);
  for (const int key : {1, 2, 3}) ASSERT_TRUE(lookup.ask(key, slow.question()).ok());
  slow.wait_until_asked(2);
  EXPECT_EQ(lookup.waiting(), 1u);
  EXPECT_EQ(slow.asked(), 2);
  slow.give();
  slow.wait_until_asked(3);
  EXPECT_EQ(lookup.waiting(), 0u);
  slow.give();
  slow.give();
  size_t taken = 0;
  while (taken < 3) {
    ASSERT_TRUE(is_readable(lookup, 60'000));
    lookup.acknowledge();
    taken += lookup.take_all().size();
  }
}

TEST(AsyncLookupTest, AForgottenAnswerIsDroppedAndAForgottenQuestionIsNotAsked) {
  Slow slow;
  Lookup lookup(1);
  for (const int key : {1, 2, 3}) ASSERT_TRUE(lookup.ask(key, slow.question()).ok());
  slow.wait_until_asked(1);
  lookup.forget(1);
  lookup.forget(2);
  slow.give();
  slow.wait_until_asked(2);
  slow.give();
  ASSERT_TRUE(is_readable(lookup, 60'000));
  EXPECT_EQ(lookup.take(3), "answer");
  EXPECT_FALSE(lookup.take(1) || lookup.take(2));
  EXPECT_EQ(slow.asked(), 2);
}

}  // namespace
}  // namespace rcuda
