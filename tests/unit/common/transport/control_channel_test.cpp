#include "common/transport/control_channel.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "common/base/socket_io.h"

namespace rcuda::transport {
namespace {

auto soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(60); }

TEST(ControlChannelTest, ACallbackMaySendUntilJoinHasReturned) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd peer(ends[0]);
  std::unique_ptr<ControlChannel> channel;
  std::promise<void> begun, goes_on;
  std::atomic<bool> over{false};
  ControlChannel::Callbacks callbacks;
  callbacks.on_message = [&](const ControlMessage& message, UniqueFd) {
    begun.set_value();
    goes_on.get_future().wait();
    channel->send({.kind = ControlMessage::kRetired, .region = message.region});
    over = true;
    return Status();
  };
  callbacks.on_end = [](bool, const std::string& why) { ADD_FAILURE() << why; };
  channel =
      std::make_unique<ControlChannel>(UniqueFd(), ControlChannel::Timing{}, std::move(callbacks));
  ASSERT_TRUE(channel->prepare().ok());
  channel->begin(UniqueFd(ends[1]));
  const ControlMessage retire{.kind = ControlMessage::kRetire, .region = 1};
  ASSERT_TRUE(send_all(peer.get(), bytes_of(retire), soon()).ok());
  begun.get_future().wait();
  std::thread owner([&] {
    channel->join();
    EXPECT_TRUE(over);
    channel.reset();
  });
  // The farewell is sent while the callback runs, and is the last message to the peer.
  ControlMessage heard;
  EXPECT_TRUE(recv_all(peer.get(), writable_bytes_of(heard), soon()).ok());
  EXPECT_EQ(heard.kind, ControlMessage::kFarewell);
  goes_on.set_value();
  owner.join();
  EXPECT_EQ(recv_all(peer.get(), writable_bytes_of(heard), soon()).code(), Code::kUnavailable);
}

// Bytes that both sides exchange before the channel begins are not messages of the channel.
TEST(ControlChannelTest, BeforeItBeginsAChannelLeavesTheSocketAlone) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd peer(ends[0]);
  UniqueFd own(ends[1]);
  std::promise<uint64_t> heard;
  ControlChannel::Callbacks callbacks;
  callbacks.on_message = [&](const ControlMessage& message, UniqueFd) {
    heard.set_value(message.region);
    return Status();
  };
  ControlChannel channel(UniqueFd(), ControlChannel::Timing{}, std::move(callbacks));
  ASSERT_TRUE(channel.prepare().ok());
  uint64_t word = 7;
  ASSERT_TRUE(send_all(peer.get(), bytes_of(word), soon()).ok());
  const ControlMessage retire{.kind = ControlMessage::kRetire, .region = 3};
  ASSERT_TRUE(send_all(peer.get(), bytes_of(retire), soon()).ok());
  word = 0;
  ASSERT_TRUE(recv_all(own.get(), writable_bytes_of(word), soon()).ok());
  EXPECT_EQ(word, 7u);
  channel.begin(std::move(own));
  EXPECT_EQ(heard.get_future().get(), 3u);
}

TEST(ControlChannelTest, AChannelThatNeverBeginsEndsAndSaysNothing) {
  ControlChannel channel(UniqueFd(), ControlChannel::Timing{}, {});
  ASSERT_TRUE(channel.prepare().ok());
  channel.join();
}

}  // namespace
}  // namespace rcuda::transport
