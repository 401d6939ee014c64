// Times on the simulated clock: a pipelined copy takes about as long as its slowest leg, a
// sequential one the sum of its legs. The planner's prediction is right, and the automatic choice
// is the best one.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include "common/base/unique_fd.h"
#include "tests/unit/p2p/pipeline/session.h"

namespace rcuda::p2p {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

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
  session.world.move_bytes = setting.gpudirect;  // its probe checks bytes
  for (int i = 0; i < 2; ++i) {
    SimDevices& devices = session.add();
    devices.set_speeds(setting.speeds);
    devices.allow_gpudirect(setting.gpudirect);
    devices.allow_ipc(setting.ipc);
  }
  session.connect(0, 1, setting.medium, setting.wire);
  session.settle();
  SimDevices& a = *session.workers[0].devices;
  SimDevices& b = *session.workers[1].devices;
  CopyRequest request;
  request.source = Shape::plain(address_of(a.make_memory(bytes)), bytes);
  request.destination = Shape::plain(address_of(b.make_memory(bytes)), bytes);
  Timed timed;
  Planner& planner = session.core(0).peer(1).peer_link()->planner(0, 0);
  timed.plan = *planner.plan(bytes, true);
  timed.predicted_us = planner.predict_plan(timed.plan, bytes).us;
  const double begin_us = session.world.now_us();
  const auto result = start_copy(session, request);
  session.settle();
  EXPECT_TRUE(result->over() && result->source.ok());
  timed.us = result->over_us - begin_us;
  return timed;
}

double us_at(uint64_t bytes, double gbps) { return static_cast<double>(bytes) / gbps * 1e-3; }

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
        if (setting.gpudirect && bytes > 16 * kMiB) continue;  // bytes are really moved
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
  EXPECT_EQ(timed.plan.strategy, Strategy::kIpc) << to_string(timed.plan);
  EXPECT_LT(timed.us, 1.1 * us_at(16 * kMiB, 100));
  setting.speeds.local = {3, 2, 0};  // slower than staging
  EXPECT_NE(time_copy(setting, "auto", 16 * kMiB).plan.strategy, Strategy::kIpc);
}

TEST(OverlapTest, AutoStagesInGpuMemoryWhereThatIsFaster) {
  Setting setting;
  setting.medium = "verbs";
  setting.gpudirect = true;
  setting.speeds = {{5, 6, 0}, {5, 6, 0}, {3, 100, 0}};
  const Timed timed = time_copy(setting, "auto", 16 * kMiB);
  EXPECT_NE(staging_of(timed.plan.strategy), Staging::kHost) << to_string(timed.plan);
  EXPECT_LT(timed.us, 1.1 * us_at(16 * kMiB, 8));
  setting.speeds.local = {3, 2, 0};
  EXPECT_EQ(time_copy(setting, "auto", 64 * kKiB).plan.strategy, Strategy::kV1);
}

TEST(OverlapTest, TheProberFindsTheLegsAsTheyAre) {
  SimSession session;
  const SimDevices::Speeds speeds{{6, 10, 2}, {5, 12, 3}, {3, 100, 1}};
  for (int i = 0; i < 2; ++i) session.add().set_speeds(speeds);
  session.connect(0, 1, "tcp", {{3, 8, 4}, 1.5});
  session.settle();
  EXPECT_TRUE(session.core(0).idle());
  const PairModel model = pair_model(session.core(0).environment().measurements,
                                     session.core(0).peer(1).peer_link()->pair_key(0, 0));
  for (const uint64_t bytes : {4 * kKiB, 100 * kKiB, 3 * kMiB, 64 * kMiB}) {
    EXPECT_NEAR(model.copy_out.time_us(bytes) / (8 + us_at(bytes, 10)), 1, 0.03) << bytes;
    // Measured and reported by the peer.
    EXPECT_NEAR(model.copy_in.time_us(bytes) / (8 + us_at(bytes, 12)), 1, 0.03) << bytes;
    // The message after a small chunk arrives with it, but the model counts it separately.
    const double wire_us = 7 + us_at(bytes, 8);
    const double with_message_us = bytes < 256 * kKiB ? 1.5 : 0;
    EXPECT_LT(model.wire_tcp.time_us(bytes), 1.03 * wire_us) << bytes;
    EXPECT_GT(model.wire_tcp.time_us(bytes), 0.97 * (wire_us - with_message_us)) << bytes;
  }
  EXPECT_NEAR(model.copy_out.delay_us(0), 2, 0.1);
  EXPECT_NEAR(model.message_us, 1.5, 0.01);
}

// Legs that are in the file are not measured again. Each is used once before the first copy.
TEST(OverlapTest, KnownLegsAreWarmedUpAndNoMore) {
  EngineOptions options;
  options.measurements_path = ::testing::TempDir() + "rcuda-known-legs.toml";
  std::remove(options.measurements_path.c_str());
  uint64_t copies[2];
  for (uint64_t& count : copies) {
    SimSession session("auto", options);
    for (int i = 0; i < 2; ++i) session.add().allow_ipc(true);
    session.connect(0, 1, "shm");
    session.settle();
    EXPECT_TRUE(session.core(0).idle());
    count = session.workers[0].devices->copies();
  }
  EXPECT_GT(copies[0], 20u);
  EXPECT_EQ(copies[1], 3u);  // out, in and mapped
  std::remove(options.measurements_path.c_str());
}

// In a program that copies in a loop from the start of the session, the legs are measured anyway,
// and its copies are hardly slower meanwhile.
TEST(OverlapTest, AProgramThatNeverPausesIsMeasuredInATwentiethOfItsTime) {
  constexpr uint64_t kBytes = 64 * kKiB;
  constexpr int kCopies = 20'000;
  double took_us[2];
  for (const bool measure : {false, true}) {
    EngineOptions options;
    options.measure = measure;
    SimSession session("v2b", options);
    session.world.move_bytes = false;
    for (int i = 0; i < 2; ++i) session.add().set_speeds({{6, 100, 2}, {5, 100, 2}, {3, 100, 1}});
    session.connect(0, 1, "shm");
    CopyRequest request;
    request.source =
        Shape::plain(address_of(session.workers[0].devices->make_memory(kBytes)), kBytes);
    request.destination =
        Shape::plain(address_of(session.workers[1].devices->make_memory(kBytes)), kBytes);
    const double begin_us = session.world.now_us();
    for (int i = 1; i <= kCopies; ++i) {
      request.id = static_cast<uint64_t>(i);
      const auto result = start_copy(session, request);
      ASSERT_TRUE(session.run([&] { return result->over(); }));
      ASSERT_TRUE(result->source.ok());
    }
    took_us[measure] = session.world.now_us() - begin_us;
    if (!measure) continue;
    for (int i = 0; i < 2; ++i) {
      const PairKey pair = session.core(0).peer(1).peer_link()->pair_key(0, 0);
      const PairModel model =
          pair_model(session.core(static_cast<size_t>(i)).environment().measurements, pair);
      EXPECT_TRUE(i == 0 ? model.copy_out.peak_gbps() > 1 : model.copy_in.peak_gbps() > 1);
    }
  }
  EXPECT_LT(took_us[true], 1.1 * took_us[false]);
}

// Three workers. The legs of the first one are the same for both others.
class SharedLegsTest : public ::testing::Test {
 protected:
  void SetUp() override { std::remove(options_.measurements_path.c_str()); }
  void TearDown() override { std::remove(options_.measurements_path.c_str()); }

  SharedLegsTest() { options_.measurements_path = ::testing::TempDir() + "rcuda-shared-legs.toml"; }
  std::unique_ptr<SimSession> connect() const {
    auto session = std::make_unique<SimSession>("v2b", options_);
    session->world.move_bytes = false;
    for (int i = 0; i < 3; ++i) session->add().set_speeds({{6, 10, 2}, {5, 12, 3}, {3, 100, 1}});
    for (size_t i = 1; i < 3; ++i) session->connect(0, i, "shm");
    return session;
  }
  static void expect_copy_out_of_first(const Measurements& measurements) {
    const LegModel* const leg = measurements.find({"copy_out", "GPU-0-0", "", ""});
    ASSERT_NE(leg, nullptr);
    for (const uint64_t bytes : {4 * kKiB, 100 * kKiB, 3 * kMiB}) {
      EXPECT_NEAR(leg->time_us(bytes) / (8 + us_at(bytes, 10)), 1, 0.03) << bytes;
    }
  }

  EngineOptions options_;
};

TEST_F(SharedLegsTest, TwoPeersAreNotMeasuredAtTheSameTime) {
  const auto session = connect();
  session->settle();
  expect_copy_out_of_first(session->core(0).environment().measurements);
  expect_copy_out_of_first(session->core(1).environment().measurements);  // as reported by the peer
}

// Copies with one peer disturb samples that are taken with the other.
TEST_F(SharedLegsTest, WhatCopiesDisturbedIsNotKept) {
  constexpr uint64_t kBytes = 8 * kMiB;
  {
    const auto session = connect();
    CopyRequest request;
    request.to = 2;
    request.source =
        Shape::plain(address_of(session->workers[0].devices->make_memory(kBytes)), kBytes);
    request.destination =
        Shape::plain(address_of(session->workers[2].devices->make_memory(kBytes)), kBytes);
    const LegKey leg{"copy_out", "GPU-0-0", "", ""};
    const Measurements& measured = session->core(0).environment().measurements;
    while (measured.find(leg) == nullptr && request.id < 5'000) {
      const auto result = start_copy(*session, request);
      ASSERT_TRUE(session->run([&] { return result->over(); }));
      ++request.id;
    }
    // A disturbed leg is better than none, for this session.
    ASSERT_NE(measured.find(leg), nullptr);
    session->settle();
    const auto kept = Measurements::load(options_.measurements_path);
    ASSERT_TRUE(kept.ok()) << kept.status().message();
    EXPECT_EQ(kept->find(leg), nullptr);
    EXPECT_NE(kept->find({"copy_in", "GPU-1-0", "", ""}), nullptr);  // not disturbed by any copy
  }
  const auto session = connect();
  session->settle();
  expect_copy_out_of_first(session->core(0).environment().measurements);
  const auto kept = Measurements::load(options_.measurements_path);
  ASSERT_TRUE(kept.ok()) << kept.status().message();
  expect_copy_out_of_first(*kept);
}

TEST_F(SharedLegsTest, WhatCannotBeSavedNowIsSavedLater) {
  const std::string& path = options_.measurements_path;
  const UniqueFd holder(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  ASSERT_EQ(::flock(holder.get(), LOCK_EX), 0);
  const auto session = connect();
  session->settle();
  EXPECT_EQ(Measurements::load(path).status().code(), Code::kNotFound);
  ASSERT_EQ(::flock(holder.get(), LOCK_UN), 0);
  session->world.after_us(2e6, [] {});
  session->settle();
  const auto kept = Measurements::load(path);
  ASSERT_TRUE(kept.ok()) << kept.status().message();
  expect_copy_out_of_first(*kept);
}

// A chunk over TCP is announced when its copy-out begins, and it reports its own arrival. So no
// message goes back between copy-out and copy-in, and the announcement travels beside the bytes.
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

// Many to one: the receiver's copy-in is the bottleneck and is shared evenly. A small copy does not
// wait for large ones.
TEST(FairnessTest, ManyToOneShareAndASmallCopyOvertakes) {
  EngineOptions options;
  options.measure = false;
  SimSession session("v4b:1Mx4", options);
  constexpr size_t kSenders = 3;
  for (size_t i = 0; i <= kSenders; ++i) session.add().set_speeds({{6, 10, 0}, {6, 10, 0}, {}});
  for (size_t i = 1; i <= kSenders; ++i) session.connect(i, 0, "tcp");
  session.settle();
  SimDevices& target = *session.workers[0].devices;
  const uint64_t bytes = 64 * kMiB;
  std::vector<std::shared_ptr<CopyResult>> results;
  const double begin_us = session.world.now_us();
  const auto start = [&](size_t from, uint64_t id, uint64_t size) {
    CopyRequest request;
    request.id = id;
    request.from = from;
    request.to = 0;
    std::byte* source = session.workers[from].devices->make_memory(size);
    std::memset(source, static_cast<int>(id), size);
    request.source = Shape::plain(address_of(source), size);
    request.destination = Shape::plain(address_of(target.make_memory(size)), size);
    return start_copy(session, request);
  };
  for (size_t i = 1; i <= kSenders; ++i) results.push_back(start(i, 1, bytes));
  std::shared_ptr<CopyResult> small;
  session.world.after_us(2000, [&] { small = start(1, 2, 64 * kKiB); });
  session.settle();
  ASSERT_TRUE(small && small->over());
  const double together_us = us_at(kSenders * bytes, 10);
  for (const auto& result : results) {
    ASSERT_TRUE(result->source.ok());
    EXPECT_GT(result->over_us - begin_us, 0.85 * together_us);
    EXPECT_LT(result->over_us - begin_us, 1.15 * together_us);
  }
  // It waits for the chunks that three windows of 4 MB have queued at the receiver, not for 192 MB.
  EXPECT_LT(small->over_us - begin_us - 2000, 0.15 * together_us);
}

TEST(FairnessTest, OneToManyShareTheCopyOut) {
  EngineOptions options;
  options.measure = false;
  SimSession session("v4b:1Mx4", options);
  for (size_t i = 0; i < 4; ++i) session.add().set_speeds({{6, 10, 0}, {6, 10, 0}, {}});
  for (size_t i = 1; i < 4; ++i) session.connect(0, i, "shm");
  session.settle();
  const uint64_t bytes = 32 * kMiB;
  std::vector<std::shared_ptr<CopyResult>> results;
  const double begin_us = session.world.now_us();
  for (size_t to = 1; to < 4; ++to) {
    CopyRequest request;
    request.to = to;
    request.source =
        Shape::plain(address_of(session.workers[0].devices->make_memory(bytes)), bytes);
    request.destination =
        Shape::plain(address_of(session.workers[to].devices->make_memory(bytes)), bytes);
    results.push_back(start_copy(session, request));
  }
  session.settle();
  for (const auto& result : results) {
    EXPECT_GT(result->over_us - begin_us, 0.85 * us_at(3 * bytes, 10));
    EXPECT_LT(result->over_us - begin_us, 1.15 * us_at(3 * bytes, 10));
  }
}

TEST(FairnessTest, StagingMemoryIsBounded) {
  EngineOptions options;
  options.measure = false;
  options.inbox_bytes = 8 * kMiB;
  options.inboxes_limit_bytes = 20 * kMiB;
  options.peers = 2;
  SimSession session("v4b", options);
  for (size_t i = 0; i < 5; ++i) session.add();
  std::vector<bool> open;
  for (size_t i = 1; i < 5; ++i) {
    session.connect(0, i, "shm");
    session.settle();
    EXPECT_LE(session.core(0).environment().mappable_staging.bytes(), options.inboxes_limit_bytes);
    open.push_back(session.core(0).peer(static_cast<PeerId>(i)).open());
  }
  EXPECT_EQ(open, (std::vector<bool>{true, true, true,
                                     false}));  // 8 + 8 MB, 4 MB for one more, then nothing is left
  EXPECT_EQ(session.core(0).peer(4).lost().code(), Code::kOutOfMemory);
}

// The arena is allocated and registered once for all peers, however many there are, and freed after
// the last.
TEST(StagingTest, AllPeersOfOneKindShareAnArena) {
  for (const char* medium : {"shm", "tcp"}) {
    EngineOptions options;
    options.measure = false;
    options.inboxes_limit_bytes = 32 * kMiB;
    options.peers = 4;
    SimSession session("v4b", options);
    for (size_t i = 0; i < 5; ++i) session.add();
    const bool mapped = medium == std::string("shm");
    std::vector<SimLinkPair> cables;
    for (size_t i = 1; i < 5; ++i) {
      cables.push_back(session.connect(0, i, medium));
      session.settle();
      ASSERT_TRUE(session.core(0).peer(static_cast<PeerId>(i)).open());
      // The mapping of each peer's inbox is registered, too.
      EXPECT_EQ(session.workers[0].devices->registered(), mapped ? 1 + i : 1);
    }
    const Environment& environment = session.core(0).environment();
    EXPECT_EQ(environment.mappable_staging.bytes(), mapped ? 32 * kMiB : 0u);
    EXPECT_EQ(environment.other_staging.bytes(), mapped ? 0u : 64 * kMiB + 4 * 4096);
    for (const SimLinkPair& cable : cables) cable.cut();
    session.settle();
    EXPECT_EQ(session.workers[0].devices->registered(), 0u);
    EXPECT_EQ(environment.mappable_staging.bytes() + environment.other_staging.bytes(), 0u);
  }
}

// Four peers that also have an outbox get inboxes as large as four that need none. A smaller inbox
// costs trains over sockets a quarter (docs/p2p_measurements.md).
TEST(StagingTest, FourPeersOfEitherKindHaveWholeInboxes) {
  for (const char* medium : {"shm", "tcp"}) {
    EngineOptions options;
    options.measure = false;
    options.peers = 4;
    SimSession session("v4b", options);
    for (size_t i = 0; i < 5; ++i) session.add();
    const bool mapped = medium == std::string("shm");
    session.connect(0, 1, medium);
    session.settle();
    ASSERT_TRUE(session.core(0).peer(1).open());
    const Environment& environment = session.core(0).environment();
    const uint64_t bytes =
        mapped ? environment.mappable_staging.bytes() : environment.other_staging.bytes();
    const uint64_t slices = mapped ? 4 : 8;
    EXPECT_EQ(bytes, slices * options.inbox_bytes + (mapped ? 0u : 4 * 4096u)) << medium;
  }
}

// The legs to the first peer are measured at once, those to another peer with the first copy to it.
TEST(StagingTest, APeerThatNobodyCopiesWithIsNotMeasured) {
  SimSession session;
  session.world.move_bytes = false;
  for (size_t i = 0; i < 3; ++i) session.add();
  session.connect(0, 1, "tcp");
  session.connect(0, 2, "tcp");
  session.settle();
  const auto wire_to = [&](size_t peer) {
    const auto legs = session.core(0).environment().measurements.legs();
    return std::any_of(legs.begin(), legs.end(), [&](const auto& leg) {
      return leg.first.kind == "wire" && leg.first.peer == "node" + std::to_string(peer);
    });
  };
  EXPECT_TRUE(wire_to(1));
  EXPECT_FALSE(wire_to(2));
  EXPECT_TRUE(session.core(0).idle());
  CopyRequest request;
  request.from = 0;
  request.to = 2;
  request.source = Shape::plain(address_of(session.workers[0].devices->make_memory(kMiB)), kMiB);
  request.destination =
      Shape::plain(address_of(session.workers[2].devices->make_memory(kMiB)), kMiB);
  const auto copy = start_copy(session, request);
  session.settle();
  EXPECT_TRUE(copy->over());
  // Samples wait until no copy has come for a while, and simulated time passes only with events.
  for (int i = 0; i < 100 && !wire_to(2); ++i) {
    session.world.after_us(10'000, [] {});
    session.settle();
  }
  EXPECT_TRUE(wire_to(2));
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
    // Each copy was written one byte further on, so only the first byte of each but the last
    // remains.
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
