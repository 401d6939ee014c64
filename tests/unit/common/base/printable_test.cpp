#include "common/base/printable.h"

#include <gtest/gtest.h>

namespace rcuda {
namespace {

TEST(PrintableTest, TextsOfAllLanguagesStay) {
  for (const char* text :
       {"", "plain ~", "Zürich, 東京, 🙂", "\u00a0\u05d0\u0627\ufeff\U0010ffff"}) {
    EXPECT_TRUE(is_printable(text)) << text;
    EXPECT_EQ(printable(text), text);
  }
}

TEST(PrintableTest, WhatControlsATerminalIsReplaced) {
  const char* const controls[] = {
      "\x01",   "\t",     "\n",     "\r",     "\x1b",   "\x1f",   "\x7f",    // C0, DEL
      "\u0080", "\u0085", "\u009b", "\u009d", "\u009f",                      // C1
      "\u2028", "\u2029",                                                    // separators
      "\u061c", "\u200e", "\u200f", "\u202a", "\u202e", "\u2066", "\u2069",  // bidirectional
  };
  for (const std::string control : controls) {
    EXPECT_FALSE(is_printable(control)) << static_cast<int>(control[0]);
    EXPECT_EQ(printable("a" + control + "b"), "a" + std::string(control.size(), '?') + "b");
  }
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a?b");
}

TEST(PrintableTest, BytesThatAreNotUtf8AreReplaced) {
  EXPECT_EQ(printable("\x9b"
                      "2J"),
            "?2J");  // C1 of an 8-bit terminal
  EXPECT_EQ(printable("cut \xe6\x9d"), "cut ??");
  EXPECT_EQ(printable("\xff\xc3("),
            "?"
            "?(");
  EXPECT_EQ(printable("\xc0\x9b\xe0\x80\x8a"), "?????");            // longer than necessary
  EXPECT_EQ(printable("\xed\xa0\x80\xf4\x90\x80\x80"), "???????");  // a surrogate; above U+10FFFF
}

}  // namespace
}  // namespace rcuda
