// The parts of a copy that wait for the destination's stream.
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/p2p/copy/session.h"

namespace rcuda::p2p {
namespace {

// A copy has a place in both streams. It may not read the source before the destination's stream
// has reached the copy, because that stream may wait for work that writes the source.
TEST(ReadyTest, TheSourceIsNotReadBeforeTheDestinationsStreamIsThere) {
  for (const char* strategy : {"v1", "v2b", "v3b", "v4b", "v4a", "ipc"}) {
    for (const uint64_t bytes : {uint64_t{100}, 64 * kKiB + 1, 9 * kMiB}) {
      SCOPED_TRACE(std::string(strategy) + " " + std::to_string(bytes));
      const bool mapped = std::string(strategy) == "ipc";
      EngineOptions options;
      options.measure = false;
      SimSession session(strategy, options);
      for (int i = 0; i < 2; ++i) {
        SimDevices& devices = session.add();
        devices.allow_gpudirect(!mapped);
        devices.allow_ipc(mapped);
      }
      session.connect(0, 1, mapped ? "shm" : "verbs");
      session.settle();
      SimDevices& b = *session.workers[1].devices;
      std::byte* from = session.workers[0].devices->make_memory(bytes);
      std::byte* to = b.make_memory(bytes);
      CopyRequest request;
      request.source = Shape::plain(address_of(from), bytes);
      request.destination = Shape::plain(address_of(to), bytes);
      request.destination_stream = b.make_stream();
      b.run_kernel(request.destination_stream, 5000, [&] { fill(from, bytes, 3); });
      const auto result = start_copy(session, request);
      session.settle();
      ASSERT_TRUE(result->over() && result->destination.ok());
      std::vector<std::byte> expected(bytes);
      fill(expected.data(), bytes, 3);
      EXPECT_EQ(std::memcmp(expected.data(), to, bytes), 0);
    }
  }
}

// A mapped copy is not staged. The sender's Pull message has arrived earlier, so the receiver
// copies as soon as its stream has reached the copy, without a further message.
TEST(ReadyTest, AMappedCopyIsPulledWhenTheDestinationsStreamIsThere) {
  EngineOptions options;
  options.measure = false;
  SimSession session("ipc", options);
  for (int i = 0; i < 2; ++i) session.add().allow_ipc(true);
  session.connect(0, 1, "shm", {{1, 8, 0}, 100});  // a message takes 100 us
  session.settle();
  SimDevices& b = *session.workers[1].devices;
  const uint64_t stream = b.make_stream();
  b.run_kernel(stream, 1000, [] {});
  CopyRequest request;
  std::byte* from = session.workers[0].devices->make_memory(kMiB);
  std::byte* to = b.make_memory(kMiB);
  fill(from, kMiB, 1);
  request.source = Shape::plain(address_of(from), kMiB);
  request.destination = Shape::plain(address_of(to), kMiB);
  request.destination_stream = stream;
  const double begin_us = session.world.now_us();
  const auto result = start_copy(session, request);
  session.settle();
  ASSERT_TRUE(result->over() && result->destination.ok());
  EXPECT_EQ(std::memcmp(from, to, kMiB), 0);
  // The kernel, the copy, and Done. There is no message between kernel and copy.
  EXPECT_LT(result->over_us - begin_us, 1000 + 20 + 100 + 50);
}

// A worker may get its half of a copy only after another copy is over. Chunks of copies whose half
// is missing at the receiver must not take slots that earlier copies need.
TEST(ReadyTest, CopiesWithoutTheirOtherHalfLeaveRoomForThoseBefore) {
  for (const char* medium : {"shm", "tcp"}) {
    SCOPED_TRACE(medium);
    constexpr size_t kCopies = 24;
    constexpr uint64_t kBytes = 3 * kMiB;
    EngineOptions options;
    options.measure = false;
    options.inbox_bytes = 8 * kMiB;
    SimSession session("v4b:1Mx4", options);
    for (int i = 0; i < 2; ++i) session.add();
    session.connect(0, 1, medium);
    session.settle();
    std::byte* from = session.workers[0].devices->make_memory(kBytes);
    std::byte* to = session.workers[1].devices->make_memory(kBytes);
    size_t over = 0;
    for (size_t i = 0; i < kCopies; ++i) {
      PeerCopy copy;
      copy.id = i + 1;
      copy.peer = 1;
      copy.outgoing = true;
      copy.memory = Shape::plain(address_of(from), kBytes);
      copy.done = [&](const Status& status) { over += status.ok(); };
      session.core(0).copy(std::move(copy), StreamPlace::kNone, {});
    }
    session.settle();
    for (size_t i = 0; i < kCopies; ++i) {
      PeerCopy copy;
      copy.id = i + 1;
      copy.memory = Shape::plain(address_of(to), kBytes);
      session.core(1).copy(std::move(copy), StreamPlace::kNone, {});
      session.settle();
      ASSERT_EQ(over, i + 1);
    }
  }
}

}  // namespace
}  // namespace rcuda::p2p
