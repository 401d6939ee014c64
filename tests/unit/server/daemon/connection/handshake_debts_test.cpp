#include "server/daemon/connection/handshake_debts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rcuda::server {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;

const HandshakeDebts::Clock::time_point kNow{seconds(1000)};
const std::string kFlood = "10.0.0.6", kClient = "10.0.0.7", kNat = "10.0.0.8";

TEST(HandshakeDebtsTest, OriginsWithLessDebtComeFirst) {
  HandshakeDebts debts;
  std::vector<HandshakeDebts::Step> due(2000, {&kFlood, 2000, false});
  due.push_back({&kNat, 256, false});
  due.push_back({&kClient, 1, false});
  std::vector<size_t> chosen = debts.order(due, kNow);
  EXPECT_EQ(chosen.size(), HandshakeDebts::kMostPerRound);
  chosen.resize(3);
  EXPECT_THAT(chosen, ElementsAre(2001, 2000, 0));
}

TEST(HandshakeDebtsTest, FailuresCountForAWhileAndSuccessesDoNot) {
  HandshakeDebts debts;
  for (int i = 0; i < 100; ++i) debts.failed(kFlood, kNow);
  EXPECT_EQ(debts.failures_of(kFlood, kNow), 100u);
  EXPECT_EQ(debts.failures_of(kClient, kNow), 0u);
  const std::vector<HandshakeDebts::Step> due = {{&kFlood, 1, true}, {&kNat, 50, false}};
  EXPECT_THAT(debts.order(due, kNow), ElementsAre(1, 0));
  EXPECT_THAT(debts.order(due, kNow + seconds(6)), ElementsAre(0, 1));
  EXPECT_EQ(debts.failures_of(kFlood, kNow + seconds(10)), 0u);
  debts.failed(kFlood, kNow + seconds(5));
  EXPECT_EQ(debts.failures_of(kFlood, kNow + seconds(5)), 51u);
}

TEST(HandshakeDebtsTest, AmongThoseOfAnOriginTheOnesThatHaveBegunComeFirst) {
  HandshakeDebts debts;
  const std::vector<HandshakeDebts::Step> due = {
      {&kNat, 4, false}, {&kNat, 4, false}, {&kNat, 4, true}, {&kNat, 4, true}};
  EXPECT_THAT(debts.order(due, kNow), ElementsAre(2, 3, 0, 1));
  EXPECT_TRUE(debts.order({}, kNow).empty());
}

TEST(HandshakeDebtsTest, OfManyOriginsTheLargestDebtsAreKept) {
  HandshakeDebts debts;
  for (int i = 0; i < 50; ++i) debts.failed(kFlood, kNow);
  for (size_t i = 0; i < 4 * HandshakeDebts::kMostOrigins; ++i) {
    debts.failed("2001:db8::" + std::to_string(i) + "/64", kNow);
  }
  EXPECT_EQ(debts.failures_of(kFlood, kNow), 50u);
}

}  // namespace
}  // namespace rcuda::server
