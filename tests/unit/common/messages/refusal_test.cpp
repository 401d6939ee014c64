#include "common/messages/refusal.h"

#include <gtest/gtest.h>

#include "common/messages/handshake.h"

namespace rcuda::wire {
namespace {

std::vector<std::byte> body(Code code) {
  return encode(Refusal{static_cast<uint32_t>(code), "it is full: try again"});
}

TEST(RefusalTest, GivesTheReasonAndTheCodeOfTheCaller) {
  const Status error = refusal_error(body(Code::kTimeout), "node1 refused", Code::kDenied);
  EXPECT_EQ(error.code(), Code::kDenied);
  EXPECT_EQ(error.context(), "node1 refused: it is full: try again");
}

TEST(RefusalTest, KeepsTheCodesThatTheCallerDistinguishes) {
  const auto code_of = [](Code given) {
    return refusal_error(body(given), "", Code::kDenied, {Code::kTimeout, Code::kUnsupported})
        .code();
  };
  EXPECT_EQ(code_of(Code::kUnsupported), Code::kUnsupported);
  EXPECT_EQ(code_of(Code::kUnavailable), Code::kDenied);
  EXPECT_EQ(code_of(Code::kOk), Code::kDenied);
  EXPECT_EQ(code_of(static_cast<Code>(12345)), Code::kDenied);
}

TEST(RefusalTest, TheReasonIsOneLineThatControlsNothing) {
  const auto hostile = encode(Refusal{1, "\x1b[2Jfull\nroot# \u009b\u2066\xff"});
  EXPECT_EQ(refusal_error(hostile, "node1", Code::kDenied).context(),
            "node1: ?[2Jfull?root# ??????");
}

TEST(RefusalTest, AMalformedOneIsAnErrorToo) {
  EXPECT_EQ(refusal_error({std::byte{1}}, "", Code::kDenied).code(), Code::kProtocol);
}

}  // namespace
}  // namespace rcuda::wire
