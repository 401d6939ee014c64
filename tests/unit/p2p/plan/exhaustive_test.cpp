// The planner against an exhaustive search of its own model. On a grid far finer than the
// planner's, no plan may be predicted to be more than 5 % faster than the planner's choice. The
// models of the legs are measured, plausible or extreme. The sizes are equal to, below and between
// the sizes for which the planner prepares plans.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/units.h"
#include "p2p/plan/planner.h"
#include "tests/support/pair_models.h"

namespace rcuda::p2p {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

struct Machine {
  const char* name;
  Capabilities can;
  PairModel model;
};

// Sockets that are slow for small transfers, with several streams that help only large ones.
PairModel bent_tcp() {
  PairModel model = h200();
  model.wire_tcp = *LegModel::from_knots({{4096, 12, 15},
                                          {65536, 60, 15},
                                          {262144, 95, 15},
                                          {1 << 20, 160, 15},
                                          {16 << 20, 1050, 15}});
  model.message_us = 11;
  return model;
}

// An NDR adapter and the GPU below one PCIe switch.
PairModel one_switch() {
  PairModel model = h200();
  model.wire_verbs = LegModel::linear(0.3, 48, 1.2);
  model.gpudirect = LegModel::linear(0.3, 48, 1.2);
  model.device_out = LegModel::linear(1.5, 1000, 4);
  model.device_in = LegModel::linear(1.5, 1000, 4);
  model.registration = LegModel::linear(100, 1000);
  model.message_us = 2;
  return model;
}

// Legs with a high latency and a high bandwidth, together with very different legs.
PairModel lopsided() {
  PairModel model;
  model.copy_out = LegModel::linear(40, 50);
  model.copy_in = LegModel::linear(2, 3, 60);
  model.wire_tcp = LegModel::linear(100, 10, 200);
  model.message_us = 25;
  return model;
}

std::vector<Machine> machines() {
  return {{"H200, shm", {.shm = true, .tcp = true}, h200()},
          {"H200, ipc", {.shm = true, .tcp = true, .ipc = true}, h200()},
          {"H200, tcp", {.tcp = true}, h200()},
          {"H200, tcp with bends", {.tcp = true}, bent_tcp()},
          {"published", {.tcp = true, .verbs = true, .gpudirect = true}, published_testbed()},
          {"published, no GPUDirect", {.tcp = true, .verbs = true}, published_testbed()},
          {"NDR, one switch", {.tcp = true, .verbs = true, .gpudirect = true}, one_switch()},
          {"lopsided, tcp", {.tcp = true}, lopsided()},
          {"lopsided, shm", {.shm = true, .tcp = true}, lopsided()}};
}

// Chunk sizes in steps of a sixteenth of an octave, every equal division into up to 64 parts, and
// the whole copy, each with every depth that the window allows.
std::vector<Chunking> every_chunking(uint64_t bytes, uint64_t staging_bytes) {
  std::set<uint64_t> chunks;
  for (uint64_t octave = 4 * kKiB; octave <= 64 * kMiB; octave *= 2) {
    for (uint64_t step = 0; step < 16; ++step) chunks.insert(octave + octave / 16 * step);
  }
  for (uint64_t parts = 1; parts <= 64; ++parts) chunks.insert((bytes + parts - 1) / parts);
  std::vector<Chunking> list;
  for (const uint64_t chunk : chunks) {
    if (chunk == 0 || chunk > bytes) continue;
    const uint64_t count = (bytes + chunk - 1) / chunk;
    for (uint32_t depth = 1; depth <= 24 && chunk * depth <= staging_bytes; ++depth) {
      list.push_back({chunk, depth});
      if (depth >= count) break;
    }
  }
  return list;
}

Plan best_of_all(const Planner& planner, uint64_t bytes) {
  Plan best;
  const auto consider = [&](const Method& method, Chunking chunking) {
    Plan plan{method.staging, method.route, chunking, 0, {}};
    plan.predicted_us = planner.predict_us(plan, bytes);
    if (plan.predicted_us <= 0) return;
    if (best.predicted_us == 0 || plan.predicted_us < best.predicted_us) best = plan;
  };
  const auto chunkings = every_chunking(bytes, planner.options().staging_bytes);
  for (const Method& method : methods()) {
    if (lacking(method, planner.capabilities(), true)) continue;
    if (!has_buffers(method.staging)) {
      consider(method, {bytes, 1});
      continue;
    }
    for (const Chunking& chunking : chunkings) consider(method, chunking);
  }
  return best;
}

class ExhaustiveTest : public testing::TestWithParam<size_t> {};

TEST_P(ExhaustiveTest, NothingIsFivePercentFasterThanThePlanThatIsTaken) {
  const Machine machine = machines()[GetParam()];
  SCOPED_TRACE(machine.name);
  for (const uint64_t window : {64 * kMiB, 32 * kMiB}) {
    PlannerOptions options;
    options.staging_bytes = window;
    Planner planner(options, machine.can, machine.model);
    std::vector<uint64_t> sizes{1, 4096, 200 * 1000, 256 * kMiB};
    for (uint64_t bytes = 16 * kKiB; bytes <= 64 * kMiB; bytes *= 4) {
      // The first size of a class, its last one, one in the middle of the next class, its second
      // one.
      sizes.insert(sizes.end(), {bytes, bytes + bytes / 4 - 1, bytes / 8 * 11, bytes + 1});
    }
    for (const uint64_t bytes : sizes) {
      const auto taken = planner.plan(bytes, true);
      ASSERT_TRUE(taken.ok());
      const double taken_us = planner.predict_us(*taken, bytes);
      const Plan best = best_of_all(planner, bytes);
      ASSERT_GT(best.predicted_us, 0);
      EXPECT_LE(taken_us, 1.05 * best.predicted_us)
          << bytes << " bytes, window " << bytes_text(window) << ": " << to_string(*taken)
          << " takes " << taken_us << " us, " << to_string(best) << " " << best.predicted_us;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, ExhaustiveTest, testing::Range(size_t{0}, machines().size()));

}  // namespace
}  // namespace rcuda::p2p
