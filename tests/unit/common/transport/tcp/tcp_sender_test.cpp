#include "common/transport/tcp/tcp_sender.h"

#include <span>
#include <string>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "common/base/socket.h"

namespace rcuda::transport {
namespace {

class TcpSenderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    socket_ = Socket(UniqueFd(ends[0]));
    peer_.reset(ends[1]);
  }
  bool send(const std::string& text, Wake wake) {
    const Bytes bytes = std::as_bytes(std::span(text));
    return sender_.send(std::span(&bytes, 1), bytes.size(), wake);
  }
  // The bytes that have been sent since the last call.
  std::string received() const {
    char text[64];
    const ssize_t bytes = ::recv(peer_.get(), text, sizeof text, MSG_DONTWAIT);
    return bytes < 0 ? "" : std::string(text, static_cast<size_t>(bytes));
  }

  Socket socket_;
  UniqueFd peer_;
  TcpSender sender_{socket_, {}, {}, {}, [](const std::string&) {}};
};

TEST_F(TcpSenderTest, APutThatGoesWithTheNextIsNotSentBefore) {
  ASSERT_TRUE(send("question ", Wake::kWithNext));
  EXPECT_EQ(received(), "");
  ASSERT_TRUE(send("wait", Wake::kNow));
  EXPECT_EQ(received(), "question wait");
}

TEST_F(TcpSenderTest, APutThatFindsTheStreamQuietIsSentAtOnce) {
  ASSERT_TRUE(send("launch", Wake::kYes));
  EXPECT_EQ(received(), "launch");
}

}  // namespace
}  // namespace rcuda::transport
