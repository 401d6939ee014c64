#include "common/wire/channel.h"

#include <cstring>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/channel_calls.h"
#include "tests/support/link_pair.h"

namespace rcuda::wire {
namespace {

using test::Medium;
using transport::Wake;
using Window = ClientWindow;

auto soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(100); }

template <typename T>
std::vector<std::byte> bytes_in(const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  return {bytes.begin(), bytes.end()};
}

// The channel is the client's end; the test writes what a worker would.
class ChannelTest : public testing::TestWithParam<const Medium*> {
 protected:
  void SetUp() override {
    Result<test::LinkPair> pair = test::make_link_pair(
        *GetParam(), {.window_bytes = Window::kBytes}, {.window_bytes = WorkerWindow::kBytes});
    ASSERT_TRUE(pair.ok()) << pair.status().message();
    pair_ = std::move(pair).value();
    channel_.emplace(*pair_.client, std::chrono::nanoseconds(0), std::chrono::seconds(100));
    commands_.emplace(*pair_.server, kCommandRingLayout);
  }
  void TearDown() override { channel_.reset(); }

  // Waits for the next command and returns its frame.
  std::vector<std::byte> next() {
    EXPECT_TRUE(pair_.server->wait([this] { return commands_->pending(); }, soon()).ok());
    const auto frame = commands_->try_next();
    if (!frame.ok()) return {};
    return {frame->begin(), frame->end()};
  }
  void put(uint64_t offset, const std::vector<std::byte>& bytes) {
    ASSERT_TRUE(pair_.server->put(offset, bytes, {}, Wake::kYes).ok());
  }
  void reply(const CommandHeader& to, uint32_t result, uint64_t value) {
    const struct {
      ReplyHeader header;
      uint64_t value, stamp;
    } answer{{result, 0}, value, ReplyStamp::make(to.call, sizeof(ReplyHeader) + sizeof value)};
    put(to.reply_slot + to.reply_bytes - sizeof answer, bytes_in(answer));
  }
  // Acts as the worker in one call: takes the next command and sends this reply.
  void answer_next(uint32_t result, uint64_t value) {
    const std::vector<std::byte> command = next();
    CommandHeader header{};
    ASSERT_GE(command.size(), sizeof header);
    std::memcpy(&header, command.data(), sizeof header);
    reply(header, result, value);
  }

  test::LinkPair pair_;
  std::optional<Channel> channel_;
  std::optional<RingReader> commands_;
};

TEST_P(ChannelTest, ACommandHasTheOpcodeOfItsBodyAndTheTailAfterIt) {
  const std::vector<std::byte> tail{std::byte{7}, std::byte{8}};
  const CopyInlineBody body{0x1000, 2, 5};
  ASSERT_TRUE(channel_->send({.context = 3, .thread = 9}, {body, tail}).ok());
  const CommandHeader header{
      .opcode = static_cast<uint16_t>(Custom::kCopyInline), .context = 3, .thread = 9};
  std::vector<std::byte> expected = bytes_in(header);
  for (const std::byte byte : bytes_in(body)) expected.push_back(byte);
  expected.insert(expected.end(), tail.begin(), tail.end());
  EXPECT_EQ(next(), expected);
  ASSERT_TRUE(channel_->send({}, PingBody{}).ok());
  EXPECT_EQ(next().size(), sizeof header) << "a command without members has no body";
  EXPECT_EQ(channel_->commands(), 2u);
}

TEST_P(ChannelTest, ABodyOfAnySizeArrives) {
  for (const size_t size : {size_t{1023}, size_t{1024}, size_t{1025}, size_t{40'000}}) {
    const std::vector<std::byte> body(size, std::byte{3});
    ASSERT_TRUE(channel_->send({}, {uint16_t{77}, body}).ok());
    const std::vector<std::byte> command = next();
    ASSERT_EQ(command.size(), sizeof(CommandHeader) + size);
    EXPECT_TRUE(std::equal(body.begin(), body.end(), command.begin() + sizeof(CommandHeader)));
  }
}

TEST_P(ChannelTest, CommandsAreNumberedInTheirOrder) {
  std::vector<uint64_t> numbers;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(
        channel_
            ->send({}, PingBody{}, Wake::kYes, [&](uint64_t number) { numbers.push_back(number); })
            .ok());
  }
  EXPECT_EQ(numbers, (std::vector<uint64_t>{1, 2, 3}));
}

TEST_P(ChannelTest, ACallReturnsTheWorkersResultAndBody) {
  std::thread worker([this] { answer_next(600, 0x1234); });
  uint32_t result = 0;
  Reply reply;
  const Status called = test::call(*channel_, {}, PingBody{}, sizeof(uint64_t), &result, &reply);
  worker.join();
  ASSERT_TRUE(called.ok()) << called.message();
  EXPECT_EQ(result, 600u);
  uint64_t value = 0;
  ASSERT_EQ(reply.body().size(), sizeof value);
  std::memcpy(&value, reply.body().data(), sizeof value);
  EXPECT_EQ(value, 0x1234u);
}

TEST_P(ChannelTest, ATakenReplyReleasesTheSlotOfTheReplyThatItReplaces) {
  Reply reply;
  std::set<uint32_t> offsets;
  for (int i = 0; i < 3; ++i) {
    std::thread worker([this] { answer_next(0, 1); });
    uint32_t result = 0;
    EXPECT_TRUE(test::call(*channel_, {}, PingBody{}, sizeof(uint64_t), &result, &reply).ok());
    worker.join();
    ReplySlot next;
    ASSERT_TRUE(channel_->acquire_slot(0, true, &next));
    offsets.insert(next.offset);
    channel_->release_slot(next);
  }
  // Two slots in turn, because the slot of the present reply is still taken.
  EXPECT_EQ(offsets.size(), 2u);
}

TEST_P(ChannelTest, AReplyThatDoesNotFitItsSlotIsRefused) {
  for (const uint32_t bytes : {uint32_t{sizeof(ReplyHeader) - 1}, Window::kSmallReplyBytes}) {
    ReplySlot slot;
    ASSERT_TRUE(channel_->acquire_slot(0, true, &slot));
    put(slot.offset + slot.bytes - sizeof(uint64_t), bytes_in(ReplyStamp::make(slot.call, bytes)));
    ASSERT_TRUE(channel_->wait([&] { return channel_->has_reply(slot); }).ok());
    uint32_t result = 0;
    Reply reply;
    EXPECT_EQ(channel_->take_reply(slot, &result, &reply).code(), Code::kProtocol);
    EXPECT_FALSE(reply.has_slot());
  }
}

TEST_P(ChannelTest, AReplyKeepsItsSlotAndImpatientCallsLeaveSomeForOthers) {
  std::vector<ReplySlot> slots;
  ReplySlot slot;
  while (channel_->acquire_slot(0, false, &slot)) slots.push_back(slot);
  EXPECT_EQ(slots.size(), Window::kSmallReplyCount - Window::kSmallReplyCount / 4);
  while (slots.size() < Window::kSmallReplyCount) {
    ASSERT_TRUE(channel_->acquire_slot(0, true, &slot));
    slots.push_back(slot);
  }
  std::set<uint32_t> offsets, calls;
  for (const ReplySlot& taken : slots) {
    offsets.insert(taken.offset);
    calls.insert(taken.call);
  }
  EXPECT_EQ(offsets.size(), slots.size());
  EXPECT_EQ(calls.size(), slots.size());
  EXPECT_TRUE(channel_->acquire_slot(Channel::kMostReplyBytes, false, &slot)) << "a large one";

  put(slots.back().offset + slots.back().bytes - 2 * sizeof(uint64_t),
      bytes_in(std::array<uint64_t, 2>{0, ReplyStamp::make(slots.back().call, 8)}));
  ASSERT_TRUE(channel_->wait([&] { return channel_->has_reply(slots.back()); }).ok());
  {
    uint32_t result = 0;
    Reply reply, moved;
    ASSERT_TRUE(channel_->take_reply(slots.back(), &result, &reply).ok());
    moved = std::move(reply);
    EXPECT_FALSE(reply.has_slot());
    EXPECT_TRUE(moved.has_slot());
  }
  ASSERT_TRUE(channel_->acquire_slot(0, true, &slot));
  EXPECT_EQ(slot.offset, slots.back().offset);
}

TEST_P(ChannelTest, AWordIsReachedWhenItsSequenceIs) {
  uint32_t result = 0;
  EXPECT_FALSE(channel_->word_reached({5, 2}, &result));
  put(Window::kCompletionWords + 8 * 5, bytes_in(CompletionWord::make(2, 700)));
  ASSERT_TRUE(test::wait_word(*channel_, {5, 2}, &result).ok());
  EXPECT_EQ(result, 700u);
  EXPECT_TRUE(channel_->word_reached({5, 1}, &result));
  EXPECT_FALSE(channel_->word_reached({5, 3}, &result));
  EXPECT_FALSE(channel_->word_reached({4, 1}, &result));
}

TEST_P(ChannelTest, TheErrorWordIsTheWorkers) {
  EXPECT_EQ(channel_->error_word(), 0u);
  put(Window::kErrorWord, bytes_in(CompletionWord::make(1, 719)));
  ASSERT_TRUE(channel_->wait([&] { return channel_->error_word() != 0; }).ok());
  EXPECT_EQ(CompletionWord::result(channel_->error_word()), 719u);
}

TEST_P(ChannelTest, AWaitEndsWithTheLinkOrWithThePatience) {
  Channel hasty(*pair_.client, std::chrono::nanoseconds(0), std::chrono::milliseconds(1));
  uint32_t result = 0;
  EXPECT_EQ(test::wait_word(hasty, {0, 1}, &result).code(), Code::kTimeout);
  std::thread end([this] { pair_.server->close(); });
  EXPECT_FALSE(test::wait_word(*channel_, {0, 1}, &result).ok());
  end.join();
  Reply reply;
  EXPECT_FALSE(test::call(*channel_, {}, PingBody{}, 0, &result, &reply).ok());
}

INSTANTIATE_TEST_SUITE_P(Media, ChannelTest,
                         testing::Values(&test::medium_named("shm"), &test::medium_named("tcp")),
                         [](const auto& info) { return std::string(info.param->name()); });

}  // namespace
}  // namespace rcuda::wire
