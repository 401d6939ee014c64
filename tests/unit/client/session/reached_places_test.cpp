// Functions that are called when a stream has reached an event, and the choice of the event for a
// copy whose source earlier copies write.
#include "client/session/reached_places.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "client/session/timeline.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

using Answer = test::PuppetServer::Answer;

class ReachedPlacesTest : public ::testing::Test {
 protected:
  ReachedPlacesTest() {
    lone_.puppet.on(wire::Custom::kWatchEvent, [this](const auto& command) {
      watched_ = command.template as<wire::WatchEventBody>();
      reached_.get_future().wait();
      return answers_ ? std::optional(Answer{}) : std::nullopt;
    });
  }
  ~ReachedPlacesTest() override { reach(); }

  Session& session() { return *lone_.session; }
  std::shared_ptr<Timeline> make_timeline() { return std::make_shared<Timeline>(session(), 1, 2); }
  std::shared_ptr<ReachedPlace> watch(const std::shared_ptr<Timeline>& timeline,
                                      uint64_t position) {
    return session().reached_places().watch({session().in_context(1), 9, timeline, position, 77});
  }
  // The worker reports that the stream has reached the event.
  void reach() {
    if (!released_.exchange(true)) reached_.set_value();
  }
  static bool eventually(const std::function<bool()>& holds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!holds() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    return holds();
  }

  std::promise<void> reached_;
  std::atomic<bool> released_{false}, answers_{true};
  wire::WatchEventBody watched_{};
  LoneSession lone_{"tcp"};
};

TEST_F(ReachedPlacesTest, FunctionsAreCalledWhenTheEventIsReached) {
  const auto timeline = make_timeline();
  const auto place = watch(timeline, 5);
  ASSERT_TRUE(place);
  std::atomic<int> calls{0};
  place->call([&] { ++calls; });
  place->call([&] { ++calls; });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // time to be called too early
  EXPECT_EQ(calls, 0);
  EXPECT_FALSE(place->is_reached());
  reach();
  EXPECT_TRUE(eventually([&] { return calls == 2; }));
  EXPECT_TRUE(timeline->has_reached(5));
  EXPECT_FALSE(timeline->has_reached(6));
  place->call([&] { ++calls; });
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(watched_.event, 9u);
  EXPECT_EQ(watched_.record, 77u);
  EXPECT_EQ(watched_.purpose, wire::WatchFor::kWait);
}

// For example, the worker has no memory for another event of the driver.
TEST_F(ReachedPlacesTest, AMarkReplacesAWatchThatFails) {
  std::atomic<int> marks{0};
  std::promise<void> marked;
  lone_.puppet.on(wire::Custom::kWatchEvent, [](const auto&) {
    return Answer{CUDA_ERROR_OUT_OF_MEMORY, {}};
  });
  lone_.puppet.on(wire::Custom::kSignal, [&](const auto&) {
    ++marks;
    marked.get_future().wait();
    return Answer{};
  });
  const auto timeline = make_timeline();
  const auto place = watch(timeline, 5);
  ASSERT_TRUE(place);
  std::atomic<int> calls{0};
  place->call([&] { ++calls; });
  EXPECT_TRUE(eventually([&] { return marks == 1; }));
  EXPECT_EQ(calls, 0);
  marked.set_value();
  EXPECT_TRUE(eventually([&] { return calls == 1; }));
  EXPECT_TRUE(timeline->has_reached(5));
}

TEST_F(ReachedPlacesTest, FunctionsAreCalledWhenTheSessionIsLost) {
  answers_ = false;
  const auto timeline = make_timeline();
  const auto place = watch(timeline, 5);
  ASSERT_TRUE(place);
  std::atomic<int> calls{0};
  place->call([&] { ++calls; });
  reach();
  lone_.puppet.link().close();
  EXPECT_TRUE(eventually([&] { return calls == 1; }));
  EXPECT_FALSE(timeline->has_reached(5));
  EXPECT_FALSE(session().reached_places().watch({session().in_context(1), 9, timeline, 6, 78}));
}

TEST_F(ReachedPlacesTest, ACopyFollowsAPlaceAfterAllWritesToItsSource) {
  const auto writer = make_timeline(), other = make_timeline(), reader = make_timeline();
  const auto write = [](Timeline& timeline, AddressRange memory) {
    timeline.count();
    const HostWrite writing(&timeline, memory);
  };
  constexpr AddressRange kSource{0x1000, 0x2000}, kNext{0x2000, 0x3000};
  EXPECT_FALSE(writer->may_write_until(9));
  write(*writer, kSource);  // position 1
  EXPECT_TRUE(writer->may_write_until(1));
  EXPECT_FALSE(writer->may_write_until(0));
  EXPECT_FALSE(reader->place_after_writes(kSource));

  const auto place = watch(writer, 1);
  ASSERT_TRUE(place);
  reader->follows(place);
  EXPECT_EQ(reader->place_after_writes(kSource), place);
  EXPECT_FALSE(writer->place_after_writes(kSource));  // only `reader` waits

  write(*other, kNext);  // the writes of a stream for which the reader does not wait
  EXPECT_EQ(reader->place_after_writes(kSource), place);
  EXPECT_FALSE(reader->place_after_writes({0x1800, 0x2800}));
  write(*writer, kSource);  // position 2, after the place
  EXPECT_FALSE(reader->place_after_writes(kSource));
  {
    const HostWrite writing(other.get(), {0x800, 0x1001});
    writer->advance(2);
    EXPECT_FALSE(reader->place_after_writes(kSource));
  }
  other->advance(1);
}

}  // namespace
}  // namespace rcuda::client
