// Copies between simulated workers: the right bytes, in the order of the streams, with every
// strategy.
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/p2p/copy/session.h"

namespace rcuda::p2p {
namespace {

constexpr size_t kGuard = 64;

struct Way {
  const char* medium;
  const char* strategy;
  bool gpudirect;
  bool ipc;
};

class CopyTest : public ::testing::TestWithParam<Way> {};

// A kernel writes the source, the copy follows in its stream, and another kernel overwrites the
// source directly after it. The destination's stream overwrites the destination before the copy and
// reads it afterwards. Any violation of the order shows in the bytes.
TEST_P(CopyTest, OddSizesAndAlignmentsInOrderWithBothStreams) {
  const Way way = GetParam();
  EngineOptions options;
  options.measure = false;
  SimSession session(way.strategy, options);
  for (int i = 0; i < 2; ++i) {
    SimDevices& devices = session.add();
    devices.allow_gpudirect(way.gpudirect);
    devices.allow_ipc(way.ipc);
  }
  session.connect(0, 1, way.medium);
  session.settle();
  ASSERT_TRUE(session.core(0).peer(1).open());
  SimDevices& a = *session.workers[0].devices;
  SimDevices& b = *session.workers[1].devices;
  const uint64_t source_stream = a.make_stream();
  const uint64_t destination_stream = b.make_stream();

  const bool tiny_chunks = std::string(way.strategy) == "v4b:1000x5";
  std::vector<std::byte> expected, seen, wanted;
  uint64_t id = 0;
  for (const uint64_t bytes : {0ul, 1ul, 3ul, 511ul, 4097ul, 65'537ul, 200'001ul, kMiB + 13,
                               5 * kMiB + 7, 15 * kMiB - 1}) {
    for (const uint64_t shift : {0ul, 1ul, 7ul}) {
      for (const int streams : {3, 1, 2, 0}) {
        ++id;
        // These two lines only save time.
        if (bytes > 2 * kMiB && (shift == 7) != (streams == 3)) continue;
        if (bytes > 2 * kMiB && tiny_chunks) continue;
        const size_t room = bytes + 2 * kGuard;
        std::byte* source = a.make_memory(room);
        std::byte* destination = b.make_memory(room);
        expected.resize(room);
        seen.assign(room, std::byte{0});
        fill(expected.data(), room, static_cast<uint32_t>(id));
        std::memset(source, 0x11, room);
        std::memset(destination, 0x22, room);

        CopyRequest request;
        request.id = id;
        request.source = Shape::plain(address_of(source) + kGuard + shift, bytes);
        request.destination = Shape::plain(address_of(destination) + kGuard - shift, bytes);
        request.source_stream = streams & 1 ? source_stream : 0;
        request.destination_stream = streams & 2 ? destination_stream : 0;
        const auto write = [&] { std::memcpy(source, expected.data(), room); };
        const auto spoil = [&] { std::memset(source, 0x33, room); };
        const auto spoil_destination = [&] { std::memset(destination, 0x44, room); };
        const auto read = [&] { std::memcpy(seen.data(), destination, room); };
        if (request.source_stream != 0) {
          a.run_kernel(source_stream, 150, write);
        } else {
          write();
        }
        if (request.destination_stream != 0)
          b.run_kernel(destination_stream, 320, spoil_destination);
        const auto result = start_copy(session, request);
        if (request.source_stream != 0) a.run_kernel(source_stream, 1, spoil);
        if (request.destination_stream != 0) b.run_kernel(destination_stream, 1, read);
        session.settle();
        ASSERT_TRUE(result->over()) << bytes << " bytes";
        ASSERT_TRUE(result->source.ok()) << result->source.message();
        ASSERT_TRUE(result->destination.ok()) << result->destination.message();
        if (request.destination_stream == 0) read();

        wanted.assign(room, request.destination_stream != 0 ? std::byte{0x44} : std::byte{0x22});
        std::memcpy(wanted.data() + kGuard - shift, expected.data() + kGuard + shift, bytes);
        ASSERT_EQ(std::memcmp(seen.data(), wanted.data(), room), 0)
            << bytes << " bytes, shift " << shift << ", streams " << streams;
        ASSERT_TRUE(a.stream_idle(source_stream));
        ASSERT_TRUE(b.stream_idle(destination_stream));
        session.core(0).release_memory({address_of(source), room, [&] { a.free_memory(source); }});
        session.settle();
        b.free_memory(destination);
      }
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<Way>& info) {
  std::string name = std::string(info.param.medium) + "_" + info.param.strategy;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name + (info.param.gpudirect ? "_gpudirect" : "") + (info.param.ipc ? "_ipc" : "");
}

INSTANTIATE_TEST_SUITE_P(
    EveryStrategyAndPath, CopyTest,
    ::testing::Values(Way{"shm", "v1", false, false}, Way{"shm", "v2b", false, false},
                      Way{"shm", "v3b", false, false}, Way{"shm", "v4b", false, false},
                      Way{"shm", "hybrid", false, false}, Way{"shm", "auto", false, false},
                      Way{"shm", "ipc", false, true}, Way{"shm", "v4b:100Kx3", false, false},
                      Way{"tcp", "v2b", false, false}, Way{"tcp", "v3b", false, false},
                      Way{"tcp", "v4b", false, false}, Way{"tcp", "hybrid", false, false},
                      Way{"tcp", "auto", false, false}, Way{"tcp", "v4b:1000x5", false, false},
                      Way{"verbs", "v1", true, false}, Way{"verbs", "v2a", true, false},
                      Way{"verbs", "v2b", true, false}, Way{"verbs", "v3a", true, false},
                      Way{"verbs", "v3b", true, false}, Way{"verbs", "v4a", true, false},
                      Way{"verbs", "v4b", true, false}, Way{"verbs", "hybrid", true, false},
                      Way{"verbs", "v4a", false, false}, Way{"verbs", "auto", true, false}),
    name_of);

// Other streams of the same worker continue. The stream of the copy waits until the peer's half of
// the copy has ended.
TEST(CopyOrderTest, OnlyTheCopysStreamsWait) {
  EngineOptions options;
  options.measure = false;
  SimSession session("v4b", options);
  SimDevices& a = session.add();
  SimDevices& b = session.add();
  session.connect(0, 1, "tcp");
  session.settle();
  std::byte* source = a.make_memory(8 * kMiB);
  std::byte* destination = b.make_memory(8 * kMiB);
  const uint64_t stream = a.make_stream();
  const uint64_t other = a.make_stream();
  CopyRequest request;
  request.source = Shape::plain(address_of(source), 8 * kMiB);
  request.destination = Shape::plain(address_of(destination), 8 * kMiB);
  request.source_stream = stream;
  const auto result = start_copy(session, request);
  double other_us = 0;
  double after_us = 0;
  a.run_kernel(other, 10, [&] { other_us = session.world.now_us(); });
  a.run_kernel(stream, 10, [&] { after_us = session.world.now_us(); });
  const double begin_us = session.world.now_us();
  session.settle();
  ASSERT_TRUE(result->source.ok());
  EXPECT_LT(other_us - begin_us, 20);
  EXPECT_GE(after_us, result->over_us);
}

// The destination's half comes late, as from a busy worker. Chunks that arrive earlier wait.
TEST(CopyOrderTest, ChunksMayComeBeforeTheClientsCommand) {
  for (const char* medium : {"shm", "tcp"}) {
    EngineOptions options;
    options.measure = false;
    SimSession session("v4b", options);
    SimDevices& a = session.add();
    SimDevices& b = session.add();
    session.connect(0, 1, medium);
    session.settle();
    const uint64_t bytes = 40 * kMiB + 3;  // larger than the inbox
    std::byte* source = a.make_memory(bytes);
    std::byte* destination = b.make_memory(bytes);
    fill(source, bytes, 3);
    CopyRequest request;
    request.source = Shape::plain(address_of(source), bytes);
    request.destination = Shape::plain(address_of(destination), bytes);
    bool over = false;
    PeerCopy sending = sending_half(request);
    sending.done = [&](const Status& status) { over = status.ok(); };
    session.core(0).copy(sending, StreamPlace::kNone, {});
    session.settle();
    EXPECT_FALSE(over);
    session.core(1).copy(receiving_half(request), StreamPlace::kNone, {});
    session.settle();
    EXPECT_TRUE(over);
    EXPECT_EQ(std::memcmp(source, destination, bytes), 0);
  }
}

// Copies that are requested before the workers are connected wait for the connection. (No stream is
// held for them, because connecting waits until no stream is held.)
TEST(CopyOrderTest, CopiesWaitForTheConnection) {
  EngineOptions options;
  options.measure = false;
  SimSession session("auto", options);
  SimDevices& a = session.add();
  SimDevices& b = session.add();
  std::byte* source = a.make_memory(kMiB);
  std::byte* destination = b.make_memory(kMiB);
  fill(source, kMiB, 9);
  CopyRequest request;
  request.source = Shape::plain(address_of(source), kMiB);
  request.destination = Shape::plain(address_of(destination), kMiB);
  const auto result = start_copy(session, request);
  session.settle();
  EXPECT_FALSE(result->over());
  session.connect(0, 1, "shm");
  session.settle();
  EXPECT_TRUE(result->over() && result->source.ok());
  EXPECT_EQ(std::memcmp(source, destination, kMiB), 0);
}

// v1 needs GPUDirect, which is proven before the Link is open: the devices copy nothing.
TEST(CopyOrderTest, TheFirstCopyUsesGpudirect) {
  EngineOptions options;
  options.measure = false;
  SimSession session("v1", options);
  SimDevices& a = session.add();
  SimDevices& b = session.add();
  a.allow_gpudirect(true);
  b.allow_gpudirect(true);
  std::byte* source = a.make_memory(kMiB);
  std::byte* destination = b.make_memory(kMiB);
  fill(source, kMiB, 9);
  CopyRequest request;
  request.source = Shape::plain(address_of(source), kMiB);
  request.destination = Shape::plain(address_of(destination), kMiB);
  const auto result = start_copy(session, request);
  session.connect(0, 1, "verbs");
  session.settle();
  EXPECT_TRUE(result->over() && result->source.ok());
  EXPECT_EQ(std::memcmp(source, destination, kMiB), 0);
  EXPECT_EQ(a.copies(), 0u);
  EXPECT_EQ(b.copies(), 0u);
}

// Whichever side connects first, no copy is planned before the peer has answered whether it can map
// the memory.
TEST(CopyOrderTest, CopiesWaitForTheAnswerWhetherMemoryCanBeMapped) {
  for (const bool other_is_late : {false, true}) {
    EngineOptions options;
    options.measure = false;
    SimSession session("ipc", options);
    SimDevices& a = session.add();
    SimDevices& b = session.add();
    a.allow_ipc(true);
    b.allow_ipc(true);
    std::byte* source = a.make_memory(kMiB);
    std::byte* destination = b.make_memory(kMiB);
    fill(source, kMiB, 9);
    CopyRequest request;
    request.source = Shape::plain(address_of(source), kMiB);
    request.destination = Shape::plain(address_of(destination), kMiB);
    const auto result = start_copy(session, request);
    session.connect(0, 1, "shm");
    if (other_is_late) {
      // The other side sends its Offer, and then cannot continue, because it gets no pause.
      ASSERT_TRUE(session.run([&] { return b.registered() > 0; }));
      b.allow_pauses(Pause::kNone);
      session.settle();
      EXPECT_TRUE(session.core(0).peer(1).open());
      EXPECT_FALSE(session.core(1).peer(0).open());
      EXPECT_EQ(a.copies(), 0u);
      b.allow_pauses(Pause::kWork);
    }
    session.settle();
    EXPECT_TRUE(result->over() && result->source.ok());
    EXPECT_EQ(std::memcmp(source, destination, kMiB), 0);
    EXPECT_EQ(a.copies(), 0u);
    EXPECT_EQ(b.copies(), 1u);
  }
}

struct Box {
  uint64_t width, height, depth, source_pitch, destination_pitch, source_rows, destination_rows;
};

// A worker whose plans map no memory does not try whether mapping works, because the first mapping
// takes milliseconds.
TEST(CopyOrderTest, MemoryIsTriedOnlyWhereAPlanMayMapIt) {
  const auto opened = [](const char* strategy, const char* path) {
    EngineOptions options;
    options.measure = false;
    SimSession session(strategy, options, path);
    for (int i = 0; i < 2; ++i) session.add().allow_ipc(true);
    session.connect(0, 1, "shm");
    session.settle();
    EXPECT_TRUE(session.core(0).peer(1).open());
    EXPECT_EQ(session.core(0).peer(1).peer_link()->capabilities(0, 0).ipc,
              session.workers[0].devices->opened() > 0);
    return session.workers[0].devices->opened();
  };
  EXPECT_EQ(opened("auto", "auto"), 1u);
  EXPECT_EQ(opened("auto", "ipc"), 1u);
  EXPECT_EQ(opened("ipc", "auto"), 1u);
  EXPECT_EQ(opened("auto", "shm"), 0u);
  EXPECT_EQ(opened("v4b", "auto"), 0u);
}

TEST(CopyShapeTest, BoxesArriveWithBothPitches) {
  for (const bool ipc : {false, true}) {
    for (const char* strategy : {"v4b:1000x3", "v4b:64Kx4", "v2b"}) {
      EngineOptions options;
      options.measure = false;
      SimSession session(ipc ? "ipc" : strategy, options);
      SimDevices& a = session.add();
      SimDevices& b = session.add();
      a.allow_ipc(ipc);
      b.allow_ipc(ipc);
      session.connect(0, 1, "shm");
      session.settle();
      uint64_t id = 0;
      for (const Box& box : std::vector<Box>{{100, 7, 1, 128, 100, 7, 7},
                                             {100, 7, 5, 128, 112, 9, 7},
                                             {3, 1000, 1, 16, 3, 1000, 1000},
                                             {3, 1, 300, 16, 8, 4, 2},
                                             {5000, 40, 3, 5000, 6000, 40, 41},
                                             {70'001, 3, 2, 70'400, 70'001, 3, 3}}) {
        const size_t source_bytes = box.source_pitch * box.source_rows * box.depth;
        const size_t destination_bytes = box.destination_pitch * box.destination_rows * box.depth;
        std::byte* source = a.make_memory(source_bytes);
        std::byte* destination = b.make_memory(destination_bytes);
        fill(source, source_bytes, 5);
        std::memset(destination, 0x77, destination_bytes);
        std::vector<std::byte> expected(destination, destination + destination_bytes);
        for (uint64_t z = 0; z < box.depth; ++z) {
          for (uint64_t y = 0; y < box.height; ++y) {
            std::memcpy(expected.data() + (z * box.destination_rows + y) * box.destination_pitch,
                        source + (z * box.source_rows + y) * box.source_pitch, box.width);
          }
        }
        CopyRequest request;
        request.id = ++id;
        request.source = {address_of(source), box.width,        box.height,
                          box.depth,          box.source_pitch, box.source_pitch * box.source_rows};
        request.destination = {address_of(destination),
                               box.width,
                               box.height,
                               box.depth,
                               box.destination_pitch,
                               box.destination_pitch * box.destination_rows};
        ASSERT_TRUE(request.source.check().ok());
        const auto result = start_copy(session, request);
        session.settle();
        ASSERT_TRUE(result->over());
        ASSERT_TRUE(result->destination.ok()) << result->destination.message();
        ASSERT_EQ(std::memcmp(expected.data(), destination, destination_bytes), 0)
            << strategy << " box " << id;
      }
      EXPECT_EQ(ipc, b.opened() > 1);
    }
  }
}

}  // namespace
}  // namespace rcuda::p2p
