#include "server/worker/waits_ahead.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "api/opcodes.h"
#include "common/wire/commands.h"
#include "tests/support/link_pair.h"

namespace rcuda::server {
namespace {

using transport::Wake;
using wire::Custom;
using wire::WatchFor;

const auto kEventRecord = static_cast<Custom>(api::Opcode::cuEventRecord);
const auto kMemFree = static_cast<Custom>(api::Opcode::cuMemFree_v2);

class WaitsAheadTest : public testing::Test {
 protected:
  static constexpr wire::RingLayout kLayout{.ring_offset = 4096,
                                            .ring_bytes = 16384,
                                            .want_offset = 128,
                                            .consumed_offset = 64,
                                            .max_frame_bytes = 4096};

  void SetUp() override {
    Result<test::LinkPair> pair = test::make_link_pair(
        test::medium_named("shm"), {.window_bytes = 4096}, {.window_bytes = 1 << 20});
    ASSERT_TRUE(pair.ok()) << pair.status().message();
    links_ = std::move(*pair);
    writer_.emplace(*links_.client, kLayout);
    reader_.emplace(*links_.server, kLayout);
    waits_.emplace(*reader_);
  }

  void send(Custom opcode, std::vector<std::byte> body = {}, uint16_t flags = 0) {
    wire::CommandHeader header{};
    header.opcode = static_cast<uint16_t>(opcode);
    header.flags = flags;
    ASSERT_TRUE(writer_->append(std::as_bytes(std::span(&header, 1)), body, Wake::kYes).ok());
  }
  void send_wait(uint64_t record, WatchFor purpose = WatchFor::kWait, uint16_t flags = 0) {
    const wire::WatchEventBody body{1, 2, 3, record, purpose, 0};
    const auto bytes = std::as_bytes(std::span(&body, 1));
    send(Custom::kWatchEvent, {bytes.begin(), bytes.end()}, flags);
  }
  static Custom opcode_of(std::span<const std::byte> payload) {
    wire::CommandHeader header;
    std::memcpy(&header, payload.data(), sizeof header);
    return static_cast<Custom>(header.opcode);
  }
  // Takes the next frame in order. Returns its opcode, or kInvalid if the command was executed
  // ahead.
  Custom take() {
    Result<std::span<const std::byte>> frame = reader_->try_next();
    EXPECT_TRUE(frame.ok());
    EXPECT_FALSE(frame->empty());
    return waits_->was_ahead() ? Custom::kInvalid : opcode_of(*frame);
  }
  // The opcodes of the commands that are executed ahead, after this number of commands.
  std::vector<Custom> ahead(uint64_t commands) {
    std::vector<Custom> opcodes;
    for (const WaitsAhead::Payload& payload : waits_->next(commands)) {
      opcodes.push_back(opcode_of(payload));
    }
    return opcodes;
  }

  test::LinkPair links_;
  std::optional<wire::RingWriter> writer_;
  std::optional<wire::RingReader> reader_;
  std::optional<WaitsAhead> waits_;
};

using Opcodes = std::vector<Custom>;

TEST_F(WaitsAheadTest, AWaitWhoseRecordIsExecutedOvertakesWork) {
  send(kEventRecord);
  send(Custom::kLaunch);
  send(Custom::kCopy);
  send_wait(1);
  EXPECT_EQ(take(), kEventRecord);
  EXPECT_EQ(ahead(1), Opcodes{Custom::kWatchEvent});
  EXPECT_EQ(ahead(1), Opcodes{});
  EXPECT_EQ(take(), Custom::kLaunch);
  EXPECT_EQ(take(), Custom::kCopy);
  EXPECT_EQ(take(), Custom::kInvalid);
  send(Custom::kLaunch);
  EXPECT_EQ(take(), Custom::kLaunch);
}

TEST_F(WaitsAheadTest, AQueryOvertakesWorkButNotItsRecord) {
  send(Custom::kLaunch);
  send(kEventRecord);
  send(Custom::kLaunch);
  send_wait(2, WatchFor::kQuery);
  EXPECT_EQ(take(), Custom::kLaunch);
  EXPECT_EQ(ahead(1), Opcodes{});
  EXPECT_EQ(take(), kEventRecord);
  EXPECT_EQ(ahead(2), Opcodes{Custom::kWatchEvent});
  EXPECT_EQ(take(), Custom::kLaunch);
  EXPECT_EQ(take(), Custom::kInvalid);
}

TEST_F(WaitsAheadTest, AQueryAndAReportOvertakeWork) {
  send(kEventRecord);
  send(Custom::kLaunch);
  send_wait(1, WatchFor::kQuery);
  send_wait(1, WatchFor::kReport);
  EXPECT_EQ(take(), kEventRecord);
  EXPECT_EQ(ahead(1), Opcodes{Custom::kWatchEvent});
  EXPECT_EQ(ahead(1), Opcodes{Custom::kWatchEvent});
  EXPECT_EQ(take(), Custom::kLaunch);
  EXPECT_EQ(take(), Custom::kInvalid);
  EXPECT_EQ(take(), Custom::kInvalid);
}

TEST_F(WaitsAheadTest, TheRequestBeforeItGoesWithIt) {
  send(kEventRecord);
  send(Custom::kLaunch);
  send(Custom::kMirrorNews);
  send_wait(1);
  EXPECT_EQ(take(), kEventRecord);
  EXPECT_EQ(ahead(1), (Opcodes{Custom::kMirrorNews, Custom::kWatchEvent}));
  EXPECT_EQ(take(), Custom::kLaunch);
  EXPECT_EQ(take(), Custom::kInvalid);
  EXPECT_EQ(take(), Custom::kInvalid);
}

TEST_F(WaitsAheadTest, ARequestThatIsNotDirectlyBeforeItStopsTheSearch) {
  send(kEventRecord);
  send(Custom::kMirrorNews);
  send(Custom::kLaunch);
  send_wait(1);
  EXPECT_EQ(take(), kEventRecord);
  EXPECT_EQ(ahead(1), Opcodes{});
  EXPECT_EQ(take(), Custom::kMirrorNews);
  EXPECT_EQ(ahead(2), Opcodes{});
  EXPECT_EQ(take(), Custom::kLaunch);
  EXPECT_EQ(ahead(3), Opcodes{Custom::kWatchEvent});
}

TEST_F(WaitsAheadTest, AWaitStaysBehindItsRecord) {
  send(Custom::kLaunch);
  send(kEventRecord);
  send(Custom::kLaunch);
  send_wait(2);
  EXPECT_EQ(take(), Custom::kLaunch);
  EXPECT_EQ(ahead(1), Opcodes{});
  EXPECT_EQ(take(), kEventRecord);
  EXPECT_EQ(ahead(2), Opcodes{Custom::kWatchEvent});
}

TEST_F(WaitsAheadTest, ALongLaunchIsOvertakenAndALongRequestIsNot) {
  send(kEventRecord);
  send(Custom::kLaunch, std::vector<std::byte>(4000));
  send_wait(1);
  EXPECT_EQ(take(), kEventRecord);
  EXPECT_EQ(ahead(1), Opcodes{Custom::kWatchEvent});
  EXPECT_EQ(take(), Custom::kLaunch);
  EXPECT_EQ(take(), Custom::kInvalid);
  send(Custom::kLaunch);
  send(Custom::kMirrorNews, std::vector<std::byte>(2000));
  send_wait(1);
  EXPECT_EQ(take(), Custom::kLaunch);
  EXPECT_EQ(ahead(4), Opcodes{});
}

// A private event for the wait would cost more than the wait gains (Completions::move()).
TEST_F(WaitsAheadTest, AStreamsWaitForTheEventIsNotOvertaken) {
  send(kEventRecord);
  send(static_cast<Custom>(api::Opcode::cuStreamWaitEvent));
  send_wait(1);
  EXPECT_EQ(take(), kEventRecord);
  EXPECT_EQ(ahead(1), Opcodes{});
}

TEST_F(WaitsAheadTest, NothingElseIsOvertaken) {
  send(kEventRecord);
  send(kMemFree);
  send(Custom::kLaunch);
  send_wait(1);
  EXPECT_EQ(take(), kEventRecord);
  EXPECT_EQ(ahead(1), Opcodes{});
  EXPECT_EQ(take(), kMemFree);
  EXPECT_EQ(ahead(2), Opcodes{Custom::kWatchEvent});
  EXPECT_EQ(take(), Custom::kLaunch);
  EXPECT_EQ(take(), Custom::kInvalid);
}

TEST_F(WaitsAheadTest, OtherWatchesKeepTheirTurn) {
  const auto keeps = [this](uint64_t record, uint16_t flags) {
    const uint64_t before = reader_->taken();
    send(kEventRecord);
    send(Custom::kLaunch);
    send_wait(record, WatchFor::kWait, flags);
    EXPECT_EQ(take(), kEventRecord);
    EXPECT_EQ(ahead(before + 1), Opcodes{});
    EXPECT_EQ(take(), Custom::kLaunch);
    EXPECT_EQ(take(), Custom::kWatchEvent);
  };
  keeps(0, 0);                  // its record is not known
  keeps(1, wire::kFlagTraced);  // a trace shows commands in order
  keeps(1'000'000'000, 0);      // a record that was never made
}

TEST_F(WaitsAheadTest, WaitsOfSeveralThreads) {
  send(kEventRecord);
  send(kEventRecord);
  send(Custom::kLaunch);
  send_wait(2);
  send(Custom::kLaunch);
  send_wait(1);
  send(Custom::kLaunch);
  EXPECT_EQ(take(), kEventRecord);
  EXPECT_EQ(ahead(1), Opcodes{Custom::kWatchEvent});  // the second wait
  EXPECT_EQ(take(), kEventRecord);
  EXPECT_EQ(ahead(2), Opcodes{Custom::kWatchEvent});
  for (const Custom opcode :
       {Custom::kLaunch, Custom::kInvalid, Custom::kLaunch, Custom::kInvalid, Custom::kLaunch}) {
    EXPECT_EQ(take(), opcode);
  }
}

TEST_F(WaitsAheadTest, RoundTheRingManyTimes) {
  for (uint64_t step = 0; step < 500; ++step) {
    send(kEventRecord, std::vector<std::byte>(step % 97));
    send(Custom::kLaunch, std::vector<std::byte>(step % 1009));
    send_wait(step * 3 + 1);
    ASSERT_EQ(take(), kEventRecord);
    ASSERT_EQ(ahead(step * 3 + 1), Opcodes{Custom::kWatchEvent}) << step;
    ASSERT_EQ(take(), Custom::kLaunch);
    ASSERT_EQ(take(), Custom::kInvalid);
  }
}

// The peer overwrites the wait's frame in the ring after the wait was executed.
TEST_F(WaitsAheadTest, AFrameCountsAsItWasSeenFirst) {
  send(kEventRecord);
  send_wait(1);
  EXPECT_EQ(take(), kEventRecord);
  EXPECT_EQ(ahead(1), Opcodes{Custom::kWatchEvent});
  std::memset(links_.server->window().data() + reader_->next_offset() + 8, 0x7f, 8);
  EXPECT_EQ(take(), Custom::kInvalid);
}

}  // namespace
}  // namespace rcuda::server
