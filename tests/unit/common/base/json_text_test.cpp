#include "common/base/json_text.h"

#include <gtest/gtest.h>

namespace rcuda {
namespace {

TEST(JsonTextTest, ATextStaysInItsLine) {
  EXPECT_EQ(json_text("plain"), "\"plain\"");
  EXPECT_EQ(json_text("a\"b\\c\nd\x7f"), "\"a\\\"b\\\\c\\u000ad\\u007f\"");
  EXPECT_EQ(json_text("Zürich, 東京, 🙂"), "\"Zürich, 東京, 🙂\"");
  EXPECT_EQ(json_text("cut \xe6\x9d"), "\"cut ??\"");
  EXPECT_EQ(json_text("\xff\xc3("),
            "\"?"
            "?(\"");
  EXPECT_EQ(json_text(std::string_view("\0", 1)), "\"\\u0000\"");
}

TEST(JsonTextTest, WhatControlsATerminalIsEscaped) {
  EXPECT_EQ(json_text("\x1b\u009b\u2028\u202e\u2066"), "\"\\u001b\\u009b\\u2028\\u202e\\u2066\"");
}

}  // namespace
}  // namespace rcuda
