#include "common/messages/control_messages.h"

#include <gtest/gtest.h>

namespace rcuda::wire {
namespace {

TEST(ControlMessagesTest, ARequestSurvivesTheWire) {
  const std::vector<std::byte> body = encode(ControlRequest{ControlOperation::kEnd, 4711});
  const Result<ControlRequest> got = decode<ControlRequest>(body);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->operation, ControlOperation::kEnd);
  EXPECT_EQ(got->worker_pid, 4711u);
  for (const uint32_t wrong : {0u, 9u}) {
    const ControlRequest unknown{static_cast<ControlOperation>(wrong), 1};
    EXPECT_EQ(decode<ControlRequest>(encode(unknown)).status().code(), Code::kProtocol);
  }
  EXPECT_FALSE(decode<ControlRequest>({body.begin(), body.end() - 1}).ok());
}

TEST(ControlMessagesTest, AnAnswerSurvivesTheWire) {
  std::vector<std::byte> body = encode(ControlAnswer{7, "changed: users", true});
  const Result<ControlAnswer> got = decode<ControlAnswer>(body);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->sessions, 7u);
  EXPECT_EQ(got->text, "changed: users");
  EXPECT_TRUE(got->draining);
  body.back() = std::byte{2};
  EXPECT_FALSE(decode<ControlAnswer>(body).ok());
  body.push_back(std::byte{0});
  EXPECT_FALSE(decode<ControlAnswer>(body).ok());
}

TEST(ControlMessagesTest, ARequestOfAnotherBuildIsToldApart) {
  std::vector<std::byte> body = encode(ControlRequest{ControlOperation::kEnd, 4711});
  body.front() ^= std::byte{1};
  const Status error = decode<ControlRequest>(body).status();
  EXPECT_EQ(error.code(), Code::kProtocol);
  EXPECT_NE(error.context().find("install the same build on both"), std::string::npos);
}

}  // namespace
}  // namespace rcuda::wire
