#include "common/interop/md2.h"

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace rcuda::interop {
namespace {

std::vector<uint8_t> bytes(std::string_view text) { return {text.begin(), text.end()}; }

std::string hex(const Md2Digest& digest) {
  std::string text;
  for (uint8_t byte : digest) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

// RFC 1319, appendix A.5.
TEST(Md2, AnswersTheVectorsOfTheRfc) {
  const std::pair<const char*, const char*> vectors[] = {
      {"", "8350e5a3e24c153df2275c9f80692773"},
      {"a", "32ec01ec4a6dac72c0ab96fb34c0b5d1"},
      {"abc", "da853b0d3f88d99b30283a69e6ded6bb"},
      {"message digest", "ab4f496bfb2a530b219ff33031fe06b0"},
      {"abcdefghijklmnopqrstuvwxyz", "4e8ddff3650292ab5a4108c3aa47940b"},
      {"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
       "da33def2a42df13975352846c30338cd"},
      {"12345678901234567890123456789012345678901234567890123456789012345678901234567890",
       "d5976f79d83d3a0dc9806c3c66f3efd8"},
  };
  for (const auto& [message, digest] : vectors) {
    EXPECT_EQ(hex(md2(bytes(message))), digest) << message;
  }
}

// RFC 2104's construction by hand: H(K ^ opad, H(K ^ ipad, text)), with MD2's block of 16 bytes.
TEST(Md2, HmacIsTheConstructionOfTheRfc) {
  const std::vector<uint8_t> key = bytes("0123456789abcdef");
  const std::vector<uint8_t> text = bytes("what do ya want for nothing?");
  std::vector<uint8_t> inner, outer;
  for (uint8_t byte : key) {
    inner.push_back(byte ^ 0x36);
    outer.push_back(byte ^ 0x5c);
  }
  inner.insert(inner.end(), text.begin(), text.end());
  const Md2Digest digest = md2(inner);
  outer.insert(outer.end(), digest.begin(), digest.end());
  EXPECT_EQ(hex(hmac_md2(key, text)), hex(md2(outer)));
}

TEST(Md2, HmacPadsShortKeysAndHashesLongOnes) {
  const std::vector<uint8_t> text = bytes("text");
  std::vector<uint8_t> padded = bytes("key");
  padded.resize(16);
  EXPECT_EQ(hmac_md2(bytes("key"), text), hmac_md2(padded, text));
  const std::vector<uint8_t> longer(40, 'k');
  const Md2Digest hashed = md2(longer);
  EXPECT_EQ(hmac_md2(longer, text), hmac_md2(hashed, text));
  EXPECT_NE(hmac_md2(bytes("key"), text), hmac_md2(bytes("kez"), text));
}

}  // namespace
}  // namespace rcuda::interop
