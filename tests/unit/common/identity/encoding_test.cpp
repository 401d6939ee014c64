#include "common/identity/encoding.h"

#include <array>
#include <vector>

#include <gtest/gtest.h>

namespace rcuda::identity {
namespace {

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

TEST(EncodingTest, VectorsOfTheRfc) {
  for (const auto& [plain, base64, hex] :
       std::initializer_list<std::array<const char*, 3>>{{"", "", ""},
                                                         {"f", "Zg", "66"},
                                                         {"fo", "Zm8", "666f"},
                                                         {"foo", "Zm9v", "666f6f"},
                                                         {"foob", "Zm9vYg", "666f6f62"},
                                                         {"fooba", "Zm9vYmE", "666f6f6261"},
                                                         {"foobar", "Zm9vYmFy", "666f6f626172"}}) {
    const std::vector<uint8_t> bytes = bytes_of(plain);
    EXPECT_EQ(to_base64url(bytes), base64);
    EXPECT_EQ(to_hex(bytes), hex);
    std::vector<uint8_t> decoded(bytes.size());
    EXPECT_TRUE(from_base64url(base64, decoded));
    EXPECT_EQ(decoded, bytes);
    decoded.assign(bytes.size(), 0);
    EXPECT_TRUE(from_hex(hex, decoded));
    EXPECT_EQ(decoded, bytes);
  }
}

TEST(EncodingTest, AllBytes) {
  std::vector<uint8_t> bytes(256), decoded(256);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(255 - i);
  ASSERT_TRUE(from_base64url(to_base64url(bytes), decoded));
  EXPECT_EQ(decoded, bytes);
  EXPECT_EQ(to_base64url(std::vector<uint8_t>{0xfb, 0xff}), "-_8");
  ASSERT_TRUE(from_hex(to_hex(bytes), decoded));
  EXPECT_EQ(decoded, bytes);
}

TEST(EncodingTest, EachValueHasOneText) {
  std::array<uint8_t, 1> one;
  ASSERT_TRUE(from_base64url("Zg", one));
  for (const char* text : {"Zh", "Zg==", "Z", "Zg ", " Zg", "Zm8", "Z+", "Z/", ""}) {
    EXPECT_FALSE(from_base64url(text, one)) << text;
  }
  ASSERT_TRUE(from_hex("6f", one));
  for (const char* text : {"6F", "6", "6f0", "6g", "0x", ""}) {
    EXPECT_FALSE(from_hex(text, one)) << text;
  }
  EXPECT_FALSE(from_hex(std::string_view("6\0", 2), one));
}

}  // namespace
}  // namespace rcuda::identity
