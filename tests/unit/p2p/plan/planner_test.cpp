#include "p2p/plan/planner.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/units.h"
#include "tests/support/pair_models.h"

namespace rcuda::p2p {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

Capabilities verbs_only() { return {.tcp = true, .verbs = true}; }
Capabilities verbs_gpudirect() { return {.tcp = true, .verbs = true, .gpudirect = true}; }

TEST(PlannerTest, PaperDecisionTable) {
  struct Row {
    uint64_t bytes;
    Staging staging;
    Chunking chunking;
  };
  const std::vector<Row> table{
      {4, Staging::kDevice, {1 * kMiB, 2}},
      {200'000, Staging::kDevice, {1 * kMiB, 2}},
      {200'001, Staging::kHost, {128 * kKiB, 8}},
      {600 * kKiB, Staging::kHost, {128 * kKiB, 8}},
      {600 * kKiB + 1, Staging::kHost, {256 * kKiB, 8}},
      {4 * kMiB, Staging::kHost, {256 * kKiB, 8}},
      {4 * kMiB + 1, Staging::kHost, {512 * kKiB, 4}},
      {14 * kMiB, Staging::kHost, {512 * kKiB, 4}},
      {14 * kMiB + 1, Staging::kHost, {1 * kMiB, 4}},
      {256 * kMiB, Staging::kHost, {1 * kMiB, 4}},
  };
  for (const char* name : {"paper", "hybrid"}) {
    Planner planner(*parse_planner_options(name, ""), verbs_gpudirect(), published_testbed());
    for (const Row& row : table) {
      const auto plan = planner.plan(row.bytes, true);
      ASSERT_TRUE(plan.ok());
      EXPECT_EQ(plan->staging, row.staging) << row.bytes;
      EXPECT_EQ(plan->chunking, row.chunking) << row.bytes;
      EXPECT_EQ(plan->route, Route::kVerbs) << row.bytes;
    }
  }
}

TEST(PlannerTest, FixedStrategiesUseThePublishedConstants) {
  struct Row {
    const char* name;
    Staging staging;
    uint64_t bytes;
    Chunking chunking;
  };
  const Chunking one{1 * kMiB, 1};
  const Chunking four{512 * kKiB, 4};
  const std::vector<Row> table{
      {"v1", Staging::kRegistered, 5 * kMiB, {5 * kMiB, 1}},
      {"v2a", Staging::kDevice, 5 * kMiB, one},
      {"v2b", Staging::kHost, 5 * kMiB, one},
      {"v3a", Staging::kDevice, 5 * kMiB, four},
      {"v3b", Staging::kHost, 5 * kMiB, four},
      {"v4a", Staging::kDevice, 5 * kMiB, {256 * kKiB, 16}},
      {"v4a", Staging::kDevice, 4 * kMiB, {512 * kKiB, 2}},
      {"v4a", Staging::kDevice, 700 * kKiB, {1 * kMiB, 2}},
      {"v4b", Staging::kHost, 5 * kMiB, {512 * kKiB, 4}},
      {"v4b:64Kx3", Staging::kHost, 5 * kMiB, {64 * kKiB, 3}},
  };
  for (const Row& row : table) {
    Planner planner(*parse_planner_options(row.name, "auto"), verbs_gpudirect(),
                    published_testbed());
    const auto plan = planner.plan(row.bytes, true);
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(plan->staging, row.staging) << row.name;
    EXPECT_EQ(plan->chunking, row.chunking) << row.name;
  }
}

TEST(PlannerTest, WithoutGpudirectHostMemoryIsUsedAndTheReasonSaysSo) {
  struct Row {
    const char* asked;
    const char* used;
  };
  for (const Row& row : std::vector<Row>{
           {"v1", "v2b"}, {"v2a", "v2b"}, {"v3a", "v3b"}, {"v4a", "v4b"}, {"ipc", "v4b"}}) {
    const auto plan_of = [](const char* name) {
      Planner planner(*parse_planner_options(name, ""), verbs_only(), published_testbed());
      return *planner.plan(1 * kMiB, true);
    };
    const Plan plan = plan_of(row.asked);
    EXPECT_EQ(plan.staging, Staging::kHost) << row.asked;
    EXPECT_EQ(plan.chunking, plan_of(row.used).chunking) << row.asked;
    EXPECT_THAT(plan.reason, HasSubstr("so host memory is used"));
  }
}

TEST(PlannerTest, V1NeedsPlainRanges) {
  Planner planner(*parse_planner_options("v1", ""), verbs_gpudirect(), published_testbed());
  EXPECT_EQ(planner.plan(1 * kMiB, true)->staging, Staging::kRegistered);
  EXPECT_EQ(planner.plan(1 * kMiB, false)->staging, Staging::kHost);
  EXPECT_THAT(planner.plan(1 * kMiB, false)->reason, HasSubstr("contiguous memory"));
}

TEST(PlannerTest, PathIsHeededWhereItExistsAndNamedWhereNot) {
  Capabilities all{.shm = true, .tcp = true, .verbs = true, .gpudirect = false, .ipc = true};
  for (Route route : {Route::kShm, Route::kTcp, Route::kVerbs, Route::kIpc}) {
    PairModel model = h200();
    model.wire_verbs = LegModel::linear(2, 12);
    Planner planner(*parse_planner_options("auto", to_string(route)), all, model);
    EXPECT_EQ(planner.plan(1 * kMiB, true)->route, route);
    Planner unmeasured(*parse_planner_options("auto", to_string(route)), all, {});
    EXPECT_EQ(unmeasured.plan(1 * kMiB, true)->route, route);
  }
  Planner planner(*parse_planner_options("auto", "verbs"), {.tcp = true}, published_testbed());
  EXPECT_EQ(planner.plan(1 * kMiB, true)->route, Route::kTcp);
  EXPECT_THAT(planner.plan(1 * kMiB, true)->reason, HasSubstr("RCUDA_P2P_PATH=verbs"));
}

TEST(PlannerTest, NoRouteInCommonIsAnError) {
  Planner planner({}, {}, published_testbed());
  EXPECT_EQ(planner.plan(1, true).status().code(), Code::kUnavailable);
}

TEST(PlannerTest, AutoPrefersMappedMemoryOnNvlink) {
  Planner planner({}, {.shm = true, .tcp = true, .ipc = true}, h200());
  for (uint64_t bytes : {4ul, 64 * kKiB, 16 * kMiB, 256 * kMiB}) {
    EXPECT_EQ(planner.plan(bytes, true)->staging, Staging::kMapped) << bytes;
  }
}

TEST(PlannerTest, AutoOnSharedMemoryPipelinesLargeCopiesAndNotSmallOnes) {
  Planner planner({}, {.shm = true, .tcp = true}, h200());
  const Plan small = *planner.plan(4 * kKiB, true);
  EXPECT_EQ(small.route, Route::kShm);
  EXPECT_EQ(small.chunking.depth, 1u);
  const Plan large = *planner.plan(256 * kMiB, true);
  EXPECT_EQ(large.route, Route::kShm);
  EXPECT_GT(large.chunking.depth, 1u);
  EXPECT_GE(large.chunking.chunk_bytes, 512 * kKiB);
  // Close to the time of the slowest leg.
  EXPECT_LT(large.predicted_us, 1.06 * h200().copy_out.time_us(256 * kMiB));
}

// The published conclusion: GPUDirect is faster for small copies. Host staging is faster where
// GPUDirect's bandwidth is a fraction of that of PCIe.
TEST(PlannerTest, AutoTurnsFromGpudirectToHostStagingOnThePublishedTestbed) {
  Planner planner({}, verbs_gpudirect(), published_testbed());
  EXPECT_EQ(planner.plan(4 * kKiB, true)->staging, Staging::kDevice);
  EXPECT_EQ(planner.plan(4 * kMiB, true)->staging, Staging::kHost);
}

TEST(PlannerTest, AutoIsTheLeastOfItsCandidatesAndNeverWorseThanPaper) {
  const Capabilities capabilities = verbs_gpudirect();
  Planner best({}, capabilities, published_testbed());
  for (uint64_t bytes = 4; bytes <= 256 * kMiB; bytes = bytes * 3 / 2 + 1) {
    const Plan plan = *best.plan(bytes, true);
    const auto all = best.candidates(bytes, true);
    ASSERT_FALSE(all.empty());
    // One plan serves all sizes of its class, so it may be some percent slower than the best one.
    EXPECT_LE(best.predict_us(plan, bytes), all.front().predicted_us * 1.05) << bytes;
    for (const char* name : {"v2b", "v3b", "v4b", "v1", "hybrid"}) {
      Planner fixed(*parse_planner_options(name, ""), capabilities, published_testbed());
      EXPECT_LE(best.predict_us(plan, bytes), fixed.plan(bytes, true)->predicted_us * 1.05)
          << name << " " << bytes;
    }
  }
}

TEST(PlannerTest, StagingMemoryBoundsEveryCandidate) {
  PlannerOptions options;
  options.staging_bytes = 2 * kMiB;
  Planner planner(options, verbs_gpudirect(), published_testbed());
  for (const Plan& plan : planner.candidates(64 * kMiB, true)) {
    if (!has_buffers(plan.staging)) continue;
    EXPECT_LE(plan.chunking.chunk_bytes * plan.chunking.depth, options.staging_bytes);
  }
}

TEST(PlannerTest, CopiesInATrainGoInFewLargeChunks) {
  Capabilities shm;
  shm.shm = true;
  Planner planner({}, shm, published_testbed());
  for (const uint64_t bytes : {uint64_t{1}, 64 * kKiB, uint64_t{200'000}, 2 * kMiB}) {
    const Plan plan = *planner.plan_in_train(bytes, true);
    EXPECT_EQ(plan.chunking, (Chunking{bytes, 1})) << bytes;
    EXPECT_EQ(plan.staging, Staging::kHost);
  }
  EXPECT_EQ(planner.plan_in_train(3 * kMiB, true)->chunking, (Chunking{3 * kMiB / 2, 8}));
  EXPECT_EQ(planner.plan_in_train(8 * kMiB, true)->chunking, (Chunking{2 * kMiB, 8}));
  EXPECT_EQ(planner.plan_in_train(256 * kMiB, true)->chunking, (Chunking{4 * kMiB, 4}));
  PlannerOptions options;
  options.staging_bytes = 4 * kMiB;
  Planner small(options, shm, published_testbed());
  EXPECT_EQ(small.plan_in_train(2 * kMiB, true)->chunking, (Chunking{256 * kKiB, 8}));
  Capabilities tcp;
  tcp.tcp = true;
  Planner sockets({}, tcp, published_testbed());
  EXPECT_EQ(sockets.plan_in_train(8 * kMiB, true)->chunking, (Chunking{4 * kMiB, 4}));
  options = *parse_planner_options("v4b:64Kx3", "");
  Planner fixed(options, shm, published_testbed());
  EXPECT_EQ(fixed.plan_in_train(2 * kMiB, true)->chunking, (Chunking{64 * kKiB, 3}));
}

TEST(PlannerTest, ReasonIsOneLine) {
  Planner planner({}, verbs_gpudirect(), published_testbed());
  const Plan plan = *planner.plan(64 * kMiB, true);
  EXPECT_THAT(plan.reason, HasSubstr("fastest of"));
  EXPECT_EQ(plan.reason.find('\n'), std::string::npos);
}

// rcuda-p2p prints this table.
TEST(PlannerTest, TheTableHasEveryMethodWithItsCostOrItsNeed) {
  Planner planner({}, verbs_gpudirect(), published_testbed());
  const std::string table = planner.table(4 * kKiB);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), static_cast<long>(methods().size()));
  EXPECT_EQ(std::count(table.begin(), table.end(), '*'), 1);
  EXPECT_THAT(table, HasSubstr("mapped over ipc\tneeds mapped memory of the peer\n"));
  EXPECT_THAT(table, HasSubstr("host over shm\tneeds a connection over shm\n"));
  const Plan plan = *planner.plan(4 * kKiB, true);
  EXPECT_THAT(table, HasSubstr("device over verbs\t" + microseconds_text(plan.predicted_us) +
                               " *, 1 x 4 KiB\n"));
  EXPECT_THAT(Planner({}, verbs_only(), {}).table(1), HasSubstr("host over tcp\tnot measured"));
  Planner fixed(*parse_planner_options("v3b", ""), verbs_gpudirect(), published_testbed());
  EXPECT_THAT(fixed.table(4 * kMiB), HasSubstr("s *, 4 x 512 KiB"));
}

TEST(PlannerTest, MemoryThatCannotBeRegisteredOrMappedIsStagedInHostMemory) {
  for (const char* name : {"auto", "v1", "ipc"}) {
    Planner planner(*parse_planner_options(name, ""), verbs_gpudirect(), published_testbed());
    const auto plan = planner.plan_in_host(4 * kMiB, "because");
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(plan->staging, Staging::kHost);
    EXPECT_EQ(plan->route, Route::kVerbs);
    EXPECT_EQ(plan->reason, "because");
  }
}

TEST(PlannerTest, MalformedSettingsAreErrorsThatSayWhatMayBe) {
  for (const char* bad :
       {"v5", "V1", "v4b:", "v4b:0x4", "v4b:64K", "v4b:64Kx0", "v4b:64Kx9999", "fast"}) {
    const auto options = parse_planner_options(bad, "");
    ASSERT_FALSE(options.ok()) << bad;
    EXPECT_THAT(options.status().context(), HasSubstr("v4b:256Kx8"));
  }
  EXPECT_FALSE(parse_planner_options("auto", "roce").ok());
}

}  // namespace
}  // namespace rcuda::p2p
