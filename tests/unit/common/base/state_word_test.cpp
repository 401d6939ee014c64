// A state that several threads change, by a table of three rows.
#include "common/base/state_word.h"

#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace rcuda {
namespace {

enum class Door { kOpen, kShut, kLocked };
enum class Act { kShut, kLock };

constexpr const char* to_string(Door door) {
  return door == Door::kOpen ? "open" : door == Door::kShut ? "shut" : "locked";
}
constexpr const char* to_string(Act act) { return act == Act::kShut ? "shut it" : "lock it"; }

constexpr Transition<Door, Act> kDoor[] = {
    {Door::kOpen, Act::kShut, Door::kShut},
    {Door::kShut, Act::kLock, Door::kLocked},
    {Door::kLocked, Act::kLock, Door::kLocked},
};
static_assert(after(kDoor, Door::kOpen, Act::kShut) == Door::kShut);
static_assert(!after(kDoor, Door::kOpen, Act::kLock));

TEST(StateWordTest, AChangeIsLoggedAndALateEventIsNot) {
  StateWord<kDoor> door;
  EXPECT_EQ(door.get(), Door::kOpen);
  set_log_level(LogLevel::kDebug);
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(door.move(Act::kShut, "the door"));
  EXPECT_TRUE(door.move(Act::kLock, "the door"));
  EXPECT_FALSE(door.move(Act::kLock, "the gate"));
  const std::string printed = ::testing::internal::GetCapturedStderr();
  set_log_level(LogLevel::kWarn);
  EXPECT_NE(printed.find("the door: open -> shut\n"), std::string::npos) << printed;
  EXPECT_NE(printed.find("the door: shut -> locked\n"), std::string::npos) << printed;
  EXPECT_EQ(printed.find("the gate"), std::string::npos) << printed;
}

#ifdef NDEBUG
TEST(StateWordTest, AnImpossibleEventIsRefusedAndLogged) {
  StateWord<kDoor> door;
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(door.move(Act::kLock, "the door"));
  const std::string printed = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(
      printed.find("the door got the event \"lock it\", which is impossible in its state open"),
      std::string::npos)
      << printed;
  EXPECT_EQ(door.get(), Door::kOpen);
}
#else
TEST(StateWordDeathTest, AnImpossibleEventStopsADebugBuild) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  StateWord<kDoor> door;
  EXPECT_DEATH((void)door.move(Act::kLock, "the door"), "event \"lock it\", which is impossible");
}
#endif

TEST(StateWordTest, OneOfManyThreadsMakesTheChange) {
  for (int round = 0; round < 200; ++round) {
    StateWord<kDoor> door;
    EXPECT_TRUE(door.move(Act::kShut, "the door"));
    std::atomic<int> changes{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] { changes += door.move(Act::kLock, "the door"); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(changes.load(), 1);
  }
}

}  // namespace
}  // namespace rcuda
