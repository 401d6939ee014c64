// Times on the simulated clock. A pipelined copy takes about as long as its slowest leg; a
// sequential copy takes the sum of its legs. The planner's prediction is right, and its automatic
// choice is the fastest method.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/p2p/copy/session.h"

namespace rcuda::p2p {
namespace {

struct Setting {
  const char* medium = "tcp";
  SimDevices::Speeds speeds{{6, 10, 2}, {5, 12, 2}, {3, 100, 1}};
  SimWire wire{{3, 8, 4}, 1};
  bool gpudirect = false;
  bool ipc = false;
};

// The time of one copy between two idle workers, in simulated microseconds.
struct Timed {
  double us = 0;
  Plan plan;
  double predicted_us = 0;
};
Timed time_copy(const Setting& setting, const std::string& strategy, uint64_t bytes,
                bool measure = true) {
  EngineOptions options;
  options.measure = measure;
  SimSession session(strategy, options);
  for (int i = 0; i < 2; ++i) {
    SimDevices& devices = session.add();
    devices.set_speeds(setting.speeds);
    devices.allow_gpudirect(setting.gpudirect);
    devices.allow_ipc(setting.ipc);
  }
  session.connect(0, 1, setting.medium, setting.wire);
  session.world.move_bytes = false;
  session.settle();
  SimDevices& a = *session.workers[0].devices;
  SimDevices& b = *session.workers[1].devices;
  CopyRequest request;
  request.source = Shape::plain(address_of(a.make_memory(bytes)), bytes);
  request.destination = Shape::plain(address_of(b.make_memory(bytes)), bytes);
  Timed timed;
  Planner& planner = session.core(0).peer(1).peer_link()->planner(0, 0);
  timed.plan = *planner.plan(bytes, true);
  timed.predicted_us = planner.predict_us(timed.plan, bytes);
  const double begin_us = session.world.now_us();
  const auto result = start_copy(session, request);
  session.settle();
  EXPECT_TRUE(result->over() && result->source.ok());
  timed.us = result->over_us - begin_us;
  return timed;
}

TEST(OverlapTest, PipelinedTakesTheSlowestLegSequentialTheSum) {
  const uint64_t bytes = 64 * kMiB;
  const Setting tcp;
  const double slowest = us_at(bytes, 8);
  const double sum = us_at(bytes, 10) + us_at(bytes, 8) + us_at(bytes, 12);
  EXPECT_LT(time_copy(tcp, "v3b", bytes).us, 1.12 * slowest);
  EXPECT_LT(time_copy(tcp, "v4b", bytes).us, 1.10 * slowest);
  EXPECT_LT(time_copy(tcp, "auto", bytes).us, 1.10 * slowest);
  EXPECT_GT(time_copy(tcp, "v2b", bytes).us, sum);

  Setting shm;
  shm.medium = "shm";
  const double shm_slowest = us_at(bytes, 10);
  EXPECT_LT(time_copy(shm, "auto", bytes).us, 1.10 * shm_slowest);
  EXPECT_GT(time_copy(shm, "v2b", bytes).us, shm_slowest + us_at(bytes, 12));
}

// The prediction must agree with the simulation. The planner knows the world only from its prober.
TEST(OverlapTest, PredictionsHoldForEveryStrategyAndSize) {
  std::vector<Setting> settings(4);
  settings[1].medium = "shm";
  settings[2].medium = "verbs";
  settings[3].medium = "verbs";
  settings[3].gpudirect = true;
  using Strategies = std::vector<const char*>;
  for (const Setting& setting : settings) {
    for (const char* strategy : setting.gpudirect ? Strategies{"v1", "v2a", "v3a", "v4a"}
                                                  : Strategies{"v2b", "v3b", "v4b", "v4b:64Kx3"}) {
      for (const uint64_t bytes : {4 * kKiB, 200 * kKiB, 1 * kMiB + 77, 16 * kMiB, 64 * kMiB}) {
        const Timed timed = time_copy(setting, strategy, bytes);
        EXPECT_NEAR(timed.predicted_us / timed.us, 1, 0.05)
            << setting.medium << " " << strategy << " " << bytes << ": " << timed.predicted_us
            << " predicted, " << timed.us << " taken";
      }
    }
  }
}

TEST(OverlapTest, AutoIsWithinFivePercentOfTheBestByExhaustiveSearch) {
  for (const char* medium : {"tcp", "shm"}) {
    Setting setting;
    setting.medium = medium;
    for (const uint64_t bytes : {64 * kKiB, 200 * kKiB, 1 * kMiB, 4 * kMiB, 16 * kMiB}) {
      double best_us = 1e18;
      std::string best;
      for (const char* chunk : {"16K", "32K", "64K", "128K", "256K", "512K", "1M", "2M", "4M"}) {
        for (const char* depth : {"1", "2", "4", "8", "16"}) {
          const std::string strategy = std::string("v4b:") + chunk + "x" + depth;
          const double us = time_copy(setting, strategy, bytes, false).us;
          if (us < best_us) {
            best_us = us;
            best = strategy;
          }
        }
      }
      const Timed chosen = time_copy(setting, "auto", bytes);
      EXPECT_LT(chosen.us, 1.05 * best_us)
          << medium << " " << bytes << ": " << to_string(chosen.plan) << " against " << best;
    }
  }
}

TEST(OverlapTest, AutoTakesTheMappedPathWhenItIsFaster) {
  Setting setting;
  setting.medium = "shm";
  setting.ipc = true;
  const Timed timed = time_copy(setting, "auto", 16 * kMiB);
  EXPECT_EQ(timed.plan.staging, Staging::kMapped) << to_string(timed.plan);
  EXPECT_LT(timed.us, 1.1 * us_at(16 * kMiB, 100));
  setting.speeds.local = {3, 2, 0};  // slower than staging
  EXPECT_NE(time_copy(setting, "auto", 16 * kMiB).plan.staging, Staging::kMapped);
}

TEST(OverlapTest, AutoStagesInGpuMemoryWhereThatIsFaster) {
  Setting setting;
  setting.medium = "verbs";
  setting.gpudirect = true;
  setting.speeds = {{5, 6, 0}, {5, 6, 0}, {3, 100, 0}};
  const Timed timed = time_copy(setting, "auto", 16 * kMiB);
  EXPECT_NE(timed.plan.staging, Staging::kHost) << to_string(timed.plan);
  EXPECT_LT(timed.us, 1.1 * us_at(16 * kMiB, 8));
  setting.speeds.local = {3, 2, 0};
  EXPECT_EQ(time_copy(setting, "auto", 64 * kKiB).plan.staging, Staging::kRegistered);
}

// A chunk over TCP is announced when its copy-out begins, and its last bytes report its arrival. So
// no message comes back between copy-out and copy-in, and the announcement is in flight at the same
// time as the bytes.
TEST(OverlapTest, ChunksOverTcpCostOneWay) {
  for (const uint64_t bytes : {64 * kKiB, kMiB}) {
    for (const double message_us : {40.0, 400.0}) {
      Setting setting;
      setting.wire = {{3, 8, 50}, message_us};
      const double out_us = 8 + us_at(bytes, 10), in_us = 7 + us_at(bytes, 12);
      const double wire_us = 3 + us_at(bytes, 8) + 50;
      const double expected_us =
          std::max(out_us + wire_us, message_us) + in_us + message_us;  // Done
      const double us = time_copy(setting, "v2b", bytes).us;
      EXPECT_GT(us, expected_us - 1) << bytes << " bytes, messages of " << message_us;
      EXPECT_LT(us, expected_us + 10) << bytes << " bytes, messages of " << message_us;
    }
  }
}

// The other direction has its own legs, so both directions run at once.
TEST(OverlapTest, BothDirectionsAtOnceCostOne) {
  EngineOptions options;
  options.measure = false;
  SimSession session("v4b:1Mx4", options);
  for (int i = 0; i < 2; ++i) session.add().set_speeds({{6, 10, 0}, {6, 10, 0}, {}});
  session.connect(0, 1, "shm");
  session.settle();
  const uint64_t bytes = 64 * kMiB;
  std::vector<std::shared_ptr<CopyResult>> results;
  const double begin_us = session.world.now_us();
  for (uint64_t id = 1; id <= 2; ++id) {
    CopyRequest request;
    request.id = id;
    request.from = id - 1;
    request.to = 2 - id;
    request.source =
        Shape::plain(address_of(session.workers[request.from].devices->make_memory(bytes)), bytes);
    request.destination =
        Shape::plain(address_of(session.workers[request.to].devices->make_memory(bytes)), bytes);
    results.push_back(start_copy(session, request));
  }
  session.settle();
  for (const auto& result : results) {
    EXPECT_LT(result->over_us - begin_us, 1.15 * us_at(bytes, 10));
  }
}

// Copies that directly follow one another in a stream keep both lanes busy. A kernel after them
// waits for the last copy.
TEST(OverlapTest, ATrainInOneStreamTakesItsSlowestLeg) {
  constexpr int kCopies = 20;
  struct Case {
    const char* strategy;
    const char* medium;
    uint64_t bytes;
    double uneven_us = 0;  // nonzero: chunks on the wire overtake one another
  };
  for (const Case& path :
       {Case{"v4b", "shm", 64 * kKiB}, Case{"ipc", "shm", 64 * kKiB},
        Case{"v4b:64Kx4", "tcp", 64 * kKiB}, Case{"v4b:128Kx4", "tcp", 256 * kKiB},
        Case{"v4b:64Kx4", "tcp", 64 * kKiB, 300}, Case{"v4b:128Kx4", "tcp", 256 * kKiB, 300},
        Case{"v4b:64Kx4", "verbs", 64 * kKiB, 300}}) {
    SCOPED_TRACE(std::string(path.strategy) + " over " + path.medium);
    const bool mapped = path.strategy == std::string("ipc");
    const uint64_t kBytes = path.bytes;
    Setting setting{path.medium};
    setting.wire.uneven_us = path.uneven_us;
    EngineOptions options;
    options.measure = false;
    SimSession session(path.strategy, options);
    for (int i = 0; i < 2; ++i) {
      SimDevices& devices = session.add();
      devices.set_speeds(setting.speeds);
      devices.allow_ipc(mapped);
    }
    session.connect(0, 1, setting.medium, setting.wire);
    session.settle();
    SimDevices& a = *session.workers[0].devices;
    SimDevices& b = *session.workers[1].devices;
    const uint64_t stream = a.make_stream();
    std::byte* from = a.make_memory(kCopies * kBytes);
    std::byte* to = b.make_memory(kBytes + kCopies);
    for (int i = 0; i < kCopies; ++i) fill(from + i * kBytes, kBytes, static_cast<uint32_t>(i));
    const double begin_us = session.world.now_us();
    std::vector<std::shared_ptr<CopyResult>> results;
    for (int i = 0; i < kCopies; ++i) {
      CopyRequest request;
      request.id = static_cast<uint64_t>(i) + 1;
      request.source = Shape::plain(address_of(from + i * kBytes), kBytes);
      request.destination = Shape::plain(address_of(to) + static_cast<uint64_t>(i), kBytes);
      request.source_stream = stream;
      request.follows = i > 0;
      results.push_back(start_copy(session, request));
    }
    double kernel_us = 0;
    a.run_kernel(stream, 1, [&] { kernel_us = session.world.now_us(); });
    session.settle();
    for (const auto& result : results) {
      ASSERT_TRUE(result->over() && result->source.ok() && result->destination.ok());
    }
    EXPECT_GE(kernel_us, results.back()->over_us);
    EXPECT_TRUE(std::is_sorted(results.begin(), results.end(), [](const auto& x, const auto& y) {
      return x->over_us < y->over_us;
    }));
    // Each copy wrote one byte after the start of the copy before. So of each copy except the last,
    // only the first byte remains.
    for (int i = 0; i < kCopies; ++i) EXPECT_EQ(to[i], from[i * kBytes]);
    EXPECT_EQ(std::memcmp(to + kCopies - 1, from + (kCopies - 1) * kBytes, kBytes), 0);
    double leg_us =
        mapped ? setting.speeds.local.busy_us(kBytes)
               : std::max(setting.speeds.out.busy_us(kBytes), setting.speeds.in.busy_us(kBytes));
    if (path.medium == std::string("tcp"))
      leg_us = std::max(leg_us, setting.wire.speed.busy_us(kBytes));
    if (path.uneven_us > 0) continue;
    EXPECT_LT(kernel_us - begin_us, kCopies * leg_us * 1.1 + 60);
  }
}

// A copy may overlap only with the previous one in its stream, not with a copy for which another
// thread of the program waits.
TEST(OverlapTest, ACopyOutsideOfTheStreamIsNotTheOneBefore) {
  constexpr uint64_t kBytes = 256 * kKiB;
  EngineOptions options;
  options.measure = false;
  SimSession session("v4b", options);
  for (int i = 0; i < 2; ++i) session.add();
  session.connect(0, 1, "shm");
  session.settle();
  SimDevices& a = *session.workers[0].devices;
  SimDevices& b = *session.workers[1].devices;
  const uint64_t stream = a.make_stream();
  std::byte* early = a.make_memory(kBytes);
  std::byte* late = a.make_memory(kBytes);
  std::byte* to = b.make_memory(kBytes);
  std::byte* elsewhere = b.make_memory(kBytes);
  fill(late, kBytes, 2);
  // The first copy of the stream waits for a kernel, and the second for the first.
  a.run_kernel(stream, 1000, [&] { fill(early, kBytes, 1); });
  CopyRequest request;
  request.id = 1;
  request.source = Shape::plain(address_of(early), kBytes);
  request.destination = Shape::plain(address_of(to), kBytes);
  request.source_stream = stream;
  const auto first = start_copy(session, request);
  CopyRequest outside = request;
  outside.id = 2;
  outside.source_stream = 0;
  outside.destination = Shape::plain(address_of(elsewhere), kBytes);
  const auto other = start_copy(session, outside);
  request.id = 3;
  request.source = Shape::plain(address_of(late), kBytes);
  request.follows = true;
  const auto second = start_copy(session, request);
  session.settle();
  ASSERT_TRUE(first->over() && other->over() && second->over());
  EXPECT_LT(other->over_us, first->over_us);
  EXPECT_LT(first->over_us, second->over_us);
  EXPECT_EQ(std::memcmp(to, late, kBytes), 0);
}

}  // namespace
}  // namespace rcuda::p2p
