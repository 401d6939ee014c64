// Several copies and peers at a time: they share legs evenly, and staging memory is bounded.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/p2p/copy/session.h"

namespace rcuda::p2p {
namespace {

// Several senders, one receiver: the receiver's copy-in is the bottleneck and is shared evenly. A
// small copy does not wait for large copies.
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
  // The small copy waits for the chunks that three windows of 4 MB have queued at the receiver, not
  // for 192 MB.
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

// All peers share one arena. It is allocated and registered once, and freed when the last peer is
// gone.
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
    EXPECT_EQ(environment.other_staging.bytes(), mapped ? 0u : 64 * kMiB);
    for (const SimLinkPair& cable : cables) cable.cut();
    session.settle();
    EXPECT_EQ(session.workers[0].devices->registered(), 0u);
    EXPECT_EQ(environment.mappable_staging.bytes() + environment.other_staging.bytes(), 0u);
  }
}

// Four peers whose medium needs an outbox get inboxes as large as four peers without an outbox.
// With a smaller inbox, trains over sockets lose a quarter of their bandwidth
// (docs/p2p_measurements.md).
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
    EXPECT_EQ(bytes, slices * options.inbox_bytes) << medium;
  }
}

}  // namespace
}  // namespace rcuda::p2p
