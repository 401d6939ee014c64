#include "common/transport/tcp/socket_order.h"

#include <thread>

#include <gtest/gtest.h>

namespace rcuda::transport {
namespace {

constexpr RegionId kRegion{7}, kOther{8};
constexpr auto kSoon = std::chrono::seconds(100);

TEST(SentOrderTest, AWriteWaitsForPutsAndForWritesToTheSamePlace) {
  SentOrder order;
  const SentOrder::Write first = order.add_write(kRegion, 0, 100);
  EXPECT_EQ(first.after_puts, 0u);
  EXPECT_EQ(first.sent, 1u);
  EXPECT_EQ(order.add_write(kRegion, 100, 200).after_puts, 0u);
  EXPECT_EQ(order.add_write(kOther, 0, 100).after_puts, 0u);
  EXPECT_EQ(order.add_write(kRegion, 99, 101).after_puts, 2u);
  EXPECT_EQ(order.add_write(kRegion, 50, 60).after_puts, 1u);
  EXPECT_EQ(order.add_put(), 6u);
  EXPECT_EQ(order.add_write(kOther, 900, 901).after_puts, 6u);
  EXPECT_EQ(order.add_write(kRegion, 0, 100).after_puts, 6u);
  EXPECT_NE(order.add_write(kRegion, 0, 100).number, first.number);
}

TEST(SentOrderTest, AWriteWaitsForAllThatAreLongPast) {
  SentOrder order;
  for (uint64_t i = 0; i < 100; ++i) {
    const SentOrder::Write write = order.add_write(kRegion, i, i + 1);
    EXPECT_EQ(write.after_puts, i < 32 ? 0 : i - 31);
  }
}

TEST(SocketOrderTest, AWriteIsHereWithAllItsBytes) {
  SocketOrder order;
  const auto wait = [&](uint32_t number, uint64_t bytes, std::chrono::milliseconds time) {
    return order.wait_for_write(number, bytes, std::chrono::microseconds(50),
                                SocketOrder::Clock::now() + time);
  };
  EXPECT_TRUE(order.count_piece(1, 60));
  EXPECT_TRUE(order.count_piece(2, 100));
  EXPECT_FALSE(wait(1, 100, std::chrono::milliseconds(1)));
  EXPECT_TRUE(wait(2, 100, kSoon));
  EXPECT_FALSE(wait(2, 100, std::chrono::milliseconds(1)));  // a reached count is removed
  std::thread other([&] { EXPECT_TRUE(order.count_piece(1, 40)); });
  EXPECT_TRUE(wait(1, 100, kSoon));
  other.join();
  std::thread end([&] { order.stop_waiting(); });
  EXPECT_FALSE(wait(3, 1, kSoon));
  end.join();
  EXPECT_FALSE(order.wait_for_puts(1));
}

TEST(SocketOrderTest, CountsStartAgain) {
  SocketOrder order;
  EXPECT_TRUE(order.wait_for_puts(0));
  EXPECT_TRUE(order.wait_for_puts(UINT32_MAX));  // an earlier number, before the wrap
  order.count_put();
  EXPECT_TRUE(order.wait_for_puts(1));
}

}  // namespace
}  // namespace rcuda::transport
