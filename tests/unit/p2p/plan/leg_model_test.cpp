#include "p2p/plan/leg_model.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace rcuda::p2p {
namespace {

TEST(LegModelTest, LinearLegIsLatencyPlusSizeOverBandwidth) {
  const LegModel leg = LegModel::linear(5, 50, 2);
  EXPECT_DOUBLE_EQ(leg.occupancy_us(0), 5);
  EXPECT_NEAR(leg.occupancy_us(50'000), 6, 1e-9);    // 50 kB at 50 GB/s: 1 us
  EXPECT_NEAR(leg.time_us(50'000'000), 1007, 1e-6);  // beyond the last knot
  EXPECT_NEAR(leg.peak_gbps(), 50, 1e-9);
}

TEST(LegModelTest, PiecesAreInterpolatedAndExtrapolated) {
  const auto leg = LegModel::from_knots({{1000, 10}, {2000, 20}, {4000, 30}});
  ASSERT_TRUE(leg.ok());
  EXPECT_DOUBLE_EQ(leg->occupancy_us(0), 10);  // not below the smallest transfer measured
  EXPECT_DOUBLE_EQ(leg->occupancy_us(1500), 15);
  EXPECT_DOUBLE_EQ(leg->occupancy_us(2000), 20);
  EXPECT_DOUBLE_EQ(leg->occupancy_us(3000), 25);
  EXPECT_DOUBLE_EQ(leg->occupancy_us(8000), 50);
}

TEST(LegModelTest, RejectsKnotsThatCannotBe) {
  EXPECT_FALSE(LegModel::from_knots({{0, 1}}).ok());
  EXPECT_FALSE(LegModel::from_knots({{0, 1}, {0, 2}}).ok());
  EXPECT_FALSE(LegModel::from_knots({{0, 2}, {8, 1}}).ok());
  EXPECT_FALSE(LegModel::from_knots({{0, 1}, {8, 2, -1}}).ok());
  EXPECT_FALSE(LegModel::from_knots({{0, 1}, {8, std::nan("")}}).ok());
}

// Samples of a leg, taken as the engine takes them.
std::vector<LegSample> samples_of(const LegModel& leg, double slow_factor) {
  std::vector<LegSample> samples;
  for (uint64_t bytes = 4096; bytes <= (16u << 20); bytes *= 2) {
    for (int i = 0; i < 5; ++i) {
      const double outlier = i == 2 ? slow_factor : 1;
      samples.push_back({bytes, 1, leg.time_us(bytes) * outlier});
      samples.push_back({bytes, 8, (leg.delay_us(bytes) + 8 * leg.occupancy_us(bytes)) * outlier});
    }
  }
  return samples;
}

TEST(LegModelTest, FitRecoversPiecesDelayAndIgnoresOutliers) {
  const LegModel truth = *LegModel::from_knots({{4096, 2, 6}, {262'144, 10, 6}, {16u << 20, 330, 6}});
  const auto fitted = LegModel::fit(samples_of(truth, 10));
  ASSERT_TRUE(fitted.ok());
  EXPECT_NEAR(fitted->delay_us(0), 6, 0.1);
  EXPECT_LE(fitted->knots().size(), 6u);
  for (uint64_t bytes = 4096; bytes <= (64u << 20); bytes = bytes * 3 / 2) {
    EXPECT_NEAR(fitted->occupancy_us(bytes) / truth.occupancy_us(bytes), 1, 0.03) << bytes;
  }
}

// Like sockets: a single transfer takes 100 us (a small transfer 20 us) in addition to its time at
// 10 GB/s. Several transfers in flight overlap these microseconds.
TEST(LegModelTest, FitOfASharedLegTakesWhatTrainsSay) {
  std::vector<LegSample> samples;
  for (uint64_t bytes = 4096; bytes <= (4u << 20); bytes *= 4) {
    const double share = static_cast<double>(bytes) / 10'000;
    const double delay = bytes < (64u << 10) ? 20 : 100;
    for (int i = 0; i < 5; ++i) {
      const double outlier = i == 2 ? 10 : 1;
      samples.push_back({bytes, 1, (delay + share) * outlier});
      samples.push_back({bytes, 4, (delay + 4 * share) * outlier});
    }
  }
  const auto fitted = LegModel::fit(samples, Sharing::kTogether);
  ASSERT_TRUE(fitted.ok());
  EXPECT_NEAR(fitted->time_us(4096), 20.4, 0.1);
  EXPECT_NEAR(fitted->delay_us(1u << 20), 100, 1);
  EXPECT_NEAR(fitted->delay_us(64u << 20), 100, 1);
  EXPECT_NEAR(fitted->occupancy_us(4u << 20), (4u << 20) / 10'000.0, 5);
  EXPECT_NEAR(fitted->peak_gbps(), 10, 0.3);
  // A train that seems to take no longer than its first transfer does not make the bandwidth
  // infinite.
  const auto noisy = LegModel::fit(
      std::vector<LegSample>{
          {1 << 20, 1, 200}, {1 << 20, 4, 200}, {2 << 20, 1, 400}, {2 << 20, 4, 400}},
      Sharing::kTogether);
  ASSERT_TRUE(noisy.ok());
  EXPECT_GE(noisy->occupancy_us(2 << 20), 50);
}

TEST(LegModelTest, FitMakesNoiseMonotone) {
  const std::vector<LegSample> samples{{1000, 1, 10}, {2000, 1, 9}, {4000, 1, 12}};
  const auto fitted = LegModel::fit(samples);
  ASSERT_TRUE(fitted.ok());
  EXPECT_NEAR(fitted->occupancy_us(1000), 9.5, 0.2);
  EXPECT_LE(fitted->occupancy_us(1000), fitted->occupancy_us(2000));
}

TEST(LegModelTest, FitNeedsTwoSizesAndTimes) {
  EXPECT_FALSE(LegModel::fit(std::vector<LegSample>{{1000, 1, 10}, {1000, 1, 11}}).ok());
  EXPECT_FALSE(LegModel::fit(std::vector<LegSample>{{1000, 1, 10}, {2000, 1, 0}}).ok());
}

}  // namespace
}  // namespace rcuda::p2p
