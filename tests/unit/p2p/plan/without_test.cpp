#include "p2p/plan/without.h"

#include <gtest/gtest.h>

namespace rcuda::p2p {
namespace {

TEST(WithoutTest, TurnsOffWhatTheListNames) {
  const auto one = parse_without("persisted");
  ASSERT_TRUE(one.has_value());
  EXPECT_TRUE(one->persisted);
  EXPECT_FALSE(one->prober);
  const auto both = parse_without("prober,persisted");
  ASSERT_TRUE(both.has_value());
  EXPECT_TRUE(both->persisted && both->prober);
  const auto none = parse_without("");
  ASSERT_TRUE(none.has_value());
  EXPECT_FALSE(none->persisted || none->prober);
}

TEST(WithoutTest, RefusesWhatItDoesNotKnow) {
  EXPECT_FALSE(parse_without("probers").has_value());
  EXPECT_FALSE(parse_without("persisted,,prober").has_value());
  EXPECT_FALSE(parse_without("all").has_value());
}

}  // namespace
}  // namespace rcuda::p2p
