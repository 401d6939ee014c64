#include "common/wire/ring.h"

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/fault_link.h"
#include "tests/support/link_pair.h"

namespace rcuda::wire {
namespace {

using test::FaultLink;
using test::FaultPlan;
using test::Medium;
using transport::Bytes;
using transport::Link;
using transport::Wake;

auto soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(100); }

// The sender is the client; the ring lies in the server's window.
class RingTest : public testing::TestWithParam<const Medium*> {
 protected:
  static constexpr uint64_t kConsumedOffset = 64;

  void SetUp() override {
    Result<test::LinkPair> pair =
        test::make_link_pair(*GetParam(), {.window_bytes = 4096}, {.window_bytes = 1 << 20});
    ASSERT_TRUE(pair.ok()) << pair.status().message();
    sender_ = std::move(pair->client);
    receiver_ = std::move(pair->server);
  }

  static RingLayout layout(uint64_t ring_bytes, uint32_t max_frame_bytes) {
    return {.ring_offset = 4096,
            .ring_bytes = ring_bytes,
            .want_offset = 128,
            .consumed_offset = kConsumedOffset,
            .max_frame_bytes = max_frame_bytes};
  }

  static std::vector<std::byte> content(uint64_t number, size_t bytes) {
    std::vector<std::byte> content(bytes);
    for (size_t i = 0; i < bytes; ++i) content[i] = static_cast<std::byte>(number * 31 + i * 7);
    return content;
  }

  Status append(RingWriter& writer, const std::vector<std::byte>& bytes) {
    const Bytes all(bytes);
    const size_t cut = bytes.size() / 3;
    return writer.append(all.first(cut), all.subspan(cut), Wake::kYes, soon());
  }

  // Sleeps until the next frame has arrived, and returns it.
  static Result<std::span<const std::byte>> next(Link& link, RingReader& reader) {
    while (true) {
      Result<std::span<const std::byte>> frame = reader.try_next();
      if (!frame || !frame->empty()) return frame;
      RCUDA_RETURN_IF_ERROR(link.wait([&] { return reader.pending(); }, soon()));
    }
  }

  // Puts raw words into the ring, as a hostile sender would.
  void scribble(uint64_t position, std::vector<uint64_t> words) {
    ASSERT_TRUE(
        sender_->put(4096 + position, std::as_bytes(std::span(words)), {}, Wake::kYes).ok());
    const auto* last = reinterpret_cast<uint64_t*>(receiver_->window().data() + 4096 + position) +
                       words.size() - 1;
    const auto arrived = [&] {
      return std::atomic_ref(*const_cast<uint64_t*>(last)).load() == words.back();
    };
    ASSERT_TRUE(receiver_->wait(arrived, soon()).ok());
  }

  void run(Link& sender, Link& receiver, const RingLayout& layout, int count, uint64_t seed) {
    ASSERT_TRUE(layout.check(receiver.window().size(), receiver.peer_window_bytes()).ok());
    std::thread writing([&] {
      RingWriter writer(sender, layout);
      std::mt19937_64 random(seed);
      for (int i = 0; i < count; ++i) {
        const size_t bytes = 1 + random() % layout.max_frame_bytes;
        ASSERT_TRUE(append(writer, content(i, bytes)).ok());
      }
    });
    RingReader reader(receiver, layout);
    std::mt19937_64 random(seed);
    for (int i = 0; i < count; ++i) {
      const size_t bytes = 1 + random() % layout.max_frame_bytes;
      const Result<std::span<const std::byte>> frame = next(receiver, reader);
      ASSERT_TRUE(frame.ok()) << frame.status().message();
      ASSERT_EQ(frame->size(), bytes);
      const std::vector<std::byte> expected = content(i, bytes);
      ASSERT_EQ(std::memcmp(frame->data(), expected.data(), bytes), 0) << "frame " << i;
    }
    writing.join();
    EXPECT_TRUE(reader.try_next()->empty());
  }

  std::unique_ptr<Link> sender_;
  std::unique_ptr<Link> receiver_;
};

TEST_P(RingTest, SmallFramesWrapManyTimes) {
  run(*sender_, *receiver_, layout(1024, 100), 20'000, 1);
}

TEST_P(RingTest, LargeFramesInASmallRing) {
  run(*sender_, *receiver_, layout(4 * (65536 + 16), 65536), 500, 2);
}

TEST_P(RingTest, RingSizesThatNoFrameDivides) {
  run(*sender_, *receiver_, layout(1000, 90), 5000, 3);
}

TEST_P(RingTest, SurvivesDelaysOnBothSides) {
  FaultLink sender(std::move(sender_), FaultPlan{.seed = 4});
  FaultLink receiver(std::move(receiver_), FaultPlan{.seed = 5});
  run(sender, receiver, layout(1024, 100), 1500, 6);
}

TEST_P(RingTest, AFrameIsOnePut) {
  RingWriter writer(*sender_, layout(65536, 1000));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(append(writer, content(i, 100)).ok());
  EXPECT_EQ(sender_->counters().puts, 20u);
  EXPECT_EQ(sender_->counters().window_bytes, 20 * frame_bytes(100));
  RingReader reader(*receiver_, layout(65536, 1000));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(next(*receiver_, reader).ok());
  EXPECT_EQ(receiver_->counters().puts, 0u);  // not a quarter of the ring yet
}

TEST_P(RingTest, AFullRingBlocksUntilTheDeadlineAndSendsNothing) {
  const RingLayout small = layout(1024, 100);
  RingWriter writer(*sender_, small);
  int sent = 0;
  Status status;
  while (true) {
    const std::vector<std::byte> bytes = content(sent, 100);
    status = writer.append(bytes, {}, Wake::kYes,
                           std::chrono::steady_clock::now() + std::chrono::milliseconds(20));
    if (!status.ok()) break;
    ++sent;
  }
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_EQ(sent, static_cast<int>(1024 / frame_bytes(100)));
  RingReader reader(*receiver_, small);
  for (int i = 0; i < sent; ++i) {
    const Result<std::span<const std::byte>> frame = next(*receiver_, reader);
    ASSERT_TRUE(frame.ok());
    const std::vector<std::byte> expected = content(i, 100);
    EXPECT_EQ(std::memcmp(frame->data(), expected.data(), 100), 0);
  }
  ASSERT_TRUE(append(writer, content(sent, 100)).ok());
  EXPECT_TRUE(next(*receiver_, reader).ok());
}

TEST_P(RingTest, RefusesFramesOfNoOrTooManyBytes) {
  RingWriter writer(*sender_, layout(1024, 100));
  EXPECT_EQ(append(writer, {}).code(), Code::kInvalidArgument);
  EXPECT_EQ(append(writer, content(0, 101)).code(), Code::kInvalidArgument);
  EXPECT_TRUE(append(writer, content(0, 100)).ok());
}

TEST_P(RingTest, ABrokenLinkEndsAnAppendThatBlocks) {
  RingWriter writer(*sender_, layout(1024, 100));
  std::thread closing([&] { receiver_->close(); });
  Status status;
  while (status.ok()) status = append(writer, content(0, 100));
  EXPECT_EQ(status.code(), Code::kUnavailable);
  closing.join();
}

TEST_P(RingTest, GoldenBytes) {
  scribble(0, {frame_header(1, 5), 0x0000005554535251, frame_stamp(1)});
  EXPECT_EQ(frame_header(1, 5), 0x0000000100000005u);
  EXPECT_EQ(frame_stamp(1), 0xfffffffffffffffeu);
  RingReader reader(*receiver_, layout(1024, 100));
  EXPECT_TRUE(reader.pending());
  const Result<std::span<const std::byte>> frame = reader.try_next();
  ASSERT_TRUE(frame.ok());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(frame->data()), frame->size()), "QRSTU");
}

TEST_P(RingTest, AFrameWithoutItsStampIsNotThereYet) {
  scribble(0, {frame_header(1, 8), 42});
  RingReader reader(*receiver_, layout(1024, 100));
  EXPECT_FALSE(reader.pending());
  EXPECT_TRUE(reader.try_next()->empty());
  scribble(16, {frame_stamp(1)});
  EXPECT_TRUE(reader.pending());
  EXPECT_EQ(reader.try_next()->size(), 8u);
}

TEST_P(RingTest, FramesThatCannotBeAreProtocolErrors) {
  const std::vector<std::vector<uint64_t>> frames = {
      {frame_header(2, 8), 0, frame_stamp(2)},  // out of sequence
      {frame_header(1, 8), 0, frame_stamp(2)},  // wrong stamp
      {frame_header(1, 101), 0, 1},             // too long
      {frame_header(1, 0xfffffffe), 0, 1},      // far too long
      {frame_header(1, 0), 0, 1},               // empty
      {frame_header(1, kWrapMark)},             // skips a whole lap
      {~uint64_t{0}},
  };
  for (const auto& words : frames) {
    std::memset(receiver_->window().data() + 4096, 0, 1024);
    scribble(0, words);
    RingReader reader(*receiver_, layout(1024, 100));
    EXPECT_TRUE(reader.pending());
    EXPECT_EQ(reader.try_next().status().code(), Code::kProtocol);
  }
}

TEST_P(RingTest, AFrameBeyondTheEndOfTheRingIsAProtocolError) {
  const RingLayout small = layout(480, 100);
  RingWriter writer(*sender_, small);
  RingReader reader(*receiver_, small);
  for (int i = 0; i < 4; ++i) {  // 4 * 104 bytes: 64 are left
    ASSERT_TRUE(append(writer, content(i, 88)).ok());
    ASSERT_TRUE(next(*receiver_, reader).ok());
  }
  scribble(416, {frame_header(5, 56), 0, 1});
  EXPECT_EQ(reader.try_next().status().code(), Code::kProtocol);
}

TEST_P(RingTest, ConsumptionThatCannotBeIsAProtocolError) {
  for (const uint64_t consumed : {uint64_t{1} << 20, ~uint64_t{0}}) {
    RingWriter writer(*sender_, layout(1024, 100));
    ASSERT_TRUE(
        receiver_->put(kConsumedOffset, std::as_bytes(std::span(&consumed, 1)), {}, Wake::kYes)
            .ok());
    Status status;
    while (status.ok()) status = append(writer, content(0, 100));
    EXPECT_EQ(status.code(), Code::kProtocol);
  }
}

TEST_P(RingTest, LooksAtEachFrameOnceAndTakesNone) {
  const RingLayout small = layout(1024, 100);
  RingWriter writer(*sender_, small);
  RingReader reader(*receiver_, small);
  uint64_t number = 0;  // with wrap marks
  for (uint64_t lap = 0; lap < 40; ++lap) {
    const std::vector<std::byte> one = content(lap, 1 + lap), two = content(lap + 1, 90);
    ASSERT_TRUE(append(writer, one).ok());
    ASSERT_TRUE(append(writer, two).ok());
    ASSERT_TRUE(receiver_->wait([&] { return reader.pending(); }, soon()).ok());
    std::vector<std::vector<std::byte>> seen;
    while (seen.size() < 2) {
      std::vector<std::byte> bytes(64);
      const auto ahead = reader.look(bytes);
      if (!ahead) continue;  // not arrived yet
      EXPECT_GT(ahead->number, number);
      number = ahead->number;
      bytes.resize(std::min(bytes.size(), ahead->payload_bytes));
      seen.push_back(bytes);
    }
    for (const auto& [sent, looked] : {std::pair(one, seen[0]), std::pair(two, seen[1])}) {
      EXPECT_TRUE(std::equal(looked.begin(), looked.end(), sent.begin()));
      const auto frame = next(*receiver_, reader);
      ASSERT_TRUE(frame.ok() && std::ranges::equal(*frame, sent));
    }
    EXPECT_EQ(reader.taken(), number);
  }
}

// When the reader has passed the position of look(), look() continues at the reader's position.
TEST_P(RingTest, NeverLooksBack) {
  const RingLayout small = layout(1024, 100);
  RingWriter writer(*sender_, small);
  RingReader reader(*receiver_, small);
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(append(writer, content(i, 16)).ok());
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(next(*receiver_, reader).ok());
  ASSERT_TRUE(receiver_->wait([&] { return reader.pending(); }, soon()).ok());
  std::vector<std::byte> bytes(16);
  const auto ahead = reader.look(bytes);
  ASSERT_TRUE(ahead);
  EXPECT_EQ(ahead->number, 3u);
  EXPECT_EQ(bytes, content(2, 16));
  EXPECT_FALSE(reader.look(bytes));
}

TEST_P(RingTest, RandomWordsNeverDoMoreThanEndTheSession) {
  std::mt19937_64 random(8);
  const RingLayout small = layout(1024, 100);
  for (int lap = 0; lap < 300; ++lap) {
    std::vector<uint64_t> words(128);
    for (uint64_t& word : words) {
      const uint64_t number = 1 + random() % 4;
      switch (random() % 5) {
        case 0:
          word = frame_header(number, static_cast<uint32_t>(random() % 110));
          break;
        case 1:
          word = frame_header(number, kWrapMark);
          break;
        case 2:
          word = frame_stamp(number);
          break;
        case 3:
          word = 0;
          break;
        default:
          word = random();
      }
    }
    words.back() = random() | 1;  // differs from the word of the previous lap
    words.front() = frame_header(1, static_cast<uint32_t>(random() % 32));
    scribble(0, words);
    RingReader reader(*receiver_, small);
    for (int i = 0; i < 200; ++i) {
      std::byte first[8];
      if (const auto ahead = reader.look(first)) ASSERT_LE(ahead->payload_bytes, 100u);
      const Result<std::span<const std::byte>> frame = reader.try_next();
      if (!frame || frame->empty()) break;
      ASSERT_LE(frame->size(), 100u);
    }
  }
}

TEST(RingLayoutTest, ChecksThatEverythingFits) {
  const RingLayout good{.ring_offset = 64, .ring_bytes = 1024, .max_frame_bytes = 100};
  EXPECT_TRUE(good.check(4096, 4096).ok());
  EXPECT_FALSE(good.check(1024, 4096).ok());
  EXPECT_FALSE(good.check(4096, 0).ok());
  RingLayout bad = good;
  bad.ring_bytes = 3 * frame_bytes(100);
  EXPECT_FALSE(bad.check(4096, 4096).ok());
  bad = good;
  bad.want_offset = 64 + 1016;
  EXPECT_FALSE(bad.check(4096, 4096).ok());
  bad = good;
  bad.ring_offset = ~uint64_t{7};
  EXPECT_FALSE(bad.check(4096, 4096).ok());
  bad = good;
  bad.ring_offset = 63;
  EXPECT_FALSE(bad.check(4096, 4096).ok());
  bad = good;
  bad.consumed_offset = 4096;
  EXPECT_FALSE(bad.check(4096, 4096).ok());
}

INSTANTIATE_TEST_SUITE_P(Media, RingTest,
                         testing::Values(&test::medium_named("shm"), &test::medium_named("tcp")),
                         [](const auto& info) { return std::string(info.param->name()); });

}  // namespace
}  // namespace rcuda::wire
