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
  channel = std::make_unique<ControlChannel>(UniqueFd(ends[1]), UniqueFd(),
                                             ControlChannel::Timing{}, std::move(callbacks));
  ASSERT_TRUE(channel->start().ok());
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

}  // namespace
}  // namespace rcuda::transport
