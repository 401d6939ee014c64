#include "server/executor/peers/peer_returns.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "common/messages/message_io.h"
#include "common/messages/refusal.h"

namespace rcuda::server {
namespace {

using Clock = std::chrono::steady_clock;
using wire::MessageType;

constexpr uint32_t kLink = 7;
constexpr int kIndex = 2;

class PeerReturnsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    name_.hello.link = kLink;
    name_.limit = std::chrono::minutes(1);
    name_.secret.fill(9);
    how_ = returns_.awaiting(name_);
    how_.on_connection([this](int index) { arrived_.push_back(index); });
  }

  wire::PeerHello hello(uint32_t attempt) const {
    wire::PeerHello result;
    result.link = kLink;
    result.stream = kIndex + 1;
    result.attempt = attempt;
    std::ranges::copy(wire::peer_attach_token(name_.secret, kLink, result.stream, attempt),
                      result.token);
    return result;
  }
  // Passes a connection of a caller to the worker. Returns the caller's end.
  UniqueFd accept(const wire::PeerHello& hello, bool is_being_made = false) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    returns_.accept(hello, UniqueFd(ends[0]), is_being_made);
    return UniqueFd(ends[1]);
  }
  static Code refusal(const UniqueFd& caller) {
    const auto answer = wire::read_message(caller.get(), Clock::now() + std::chrono::seconds(10));
    if (!answer.ok() || answer->first != MessageType::kRefusal) return Code::kOk;
    return wire::refusal_error(answer->second, "refused", Code::kUnavailable, {Code::kNotFound})
        .code();
  }
  static bool is_closed(const UniqueFd& socket) {
    char byte;
    return ::recv(socket.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
  }

  PeerReturns::PeerLinkName name_;
  PeerReturns returns_{std::chrono::seconds(10)};
  transport::Reconnecting how_;
  std::vector<int> arrived_;
};

TEST_F(PeerReturnsTest, AConnectionIsPassedOnAndAnswered) {
  const UniqueFd caller = accept(hello(1));
  EXPECT_EQ(arrived_, std::vector{kIndex});
  ASSERT_TRUE(how_.next(kIndex, Clock::now()).ok());
  const auto answer = wire::read_message(caller.get(), Clock::now() + std::chrono::seconds(10));
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->first, MessageType::kAttached);
  EXPECT_EQ(how_.next(kIndex, Clock::now()).status().code(), Code::kTimeout);
}

TEST_F(PeerReturnsTest, AnAttemptIsValidOnce) {
  const UniqueFd first = accept(hello(3));
  for (const uint32_t attempt : {1u, 2u, 3u}) EXPECT_TRUE(is_closed(accept(hello(attempt))));
  EXPECT_FALSE(is_closed(first));
  const UniqueFd later = accept(hello(4));  // so the caller has abandoned its first connection
  EXPECT_TRUE(is_closed(first));
  EXPECT_FALSE(is_closed(later));
  EXPECT_EQ(arrived_.size(), 2u);
}

TEST_F(PeerReturnsTest, AMadeUpTokenIsDropped) {
  wire::PeerHello wrong = hello(1);
  wrong.attempt = 2;
  EXPECT_TRUE(is_closed(accept(wrong)));
  wrong = hello(1);
  wrong.stream = 100;
  EXPECT_TRUE(is_closed(accept(wrong)));
  wrong.stream = 0;
  EXPECT_TRUE(is_closed(accept(wrong)));
  EXPECT_TRUE(arrived_.empty());
  EXPECT_FALSE(is_closed(accept(hello(1))));
}

TEST_F(PeerReturnsTest, ALinkThatHasEndedIsRefused) {
  how_.on_connection(nullptr);
  EXPECT_EQ(refusal(accept(hello(1))), Code::kNotFound);
  // While the Link is being made, the refusal lets the caller try again.
  EXPECT_EQ(refusal(accept(hello(1), true)), Code::kUnavailable);
  EXPECT_EQ(how_.next(kIndex, Clock::now()).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace rcuda::server
