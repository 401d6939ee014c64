#include "common/identity/token.h"

#include <set>

#include <gtest/gtest.h>

#include "common/identity/encoding.h"

namespace rcuda::identity {
namespace {

Token example() {
  Token token;
  token.id = "0a1b2c3d";
  token.secret.fill(0x11);
  token.fingerprint.fill(0xff);
  return token;
}

const std::string kExample =
    "rcuda1.0a1b2c3d.ERERERERERERERERERERERERERERERERERERERERERE."
    "__________________________________________8";

TEST(TokenTest, Text) {
  EXPECT_EQ(format(example()), kExample);
  const Result<Token> parsed = parse_token(kExample);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(*parsed, example());
}

TEST(TokenTest, EveryOtherTextIsRefusedWithoutBeingRepeated) {
  const std::string secret = "ERERERERERERERERERERERERERERERERERERERERERE";
  for (const std::string& text : {
           std::string(), std::string("rcuda1."), std::string("rcuda1..."),
           "rcuda2" + kExample.substr(6), "RCUDA1" + kExample.substr(6), " " + kExample,
           kExample + "\n", kExample + ".", kExample + std::string(1, '\0'),
           kExample.substr(0, kExample.size() - 1), kExample.substr(0, 16 + secret.size()),
           "rcuda1.0A1B2C3D." + kExample.substr(16), "rcuda1.0a1b2c3." + kExample.substr(16),
           "rcuda1.0a1b2c3d.=" + kExample.substr(17),
           "rcuda1.0a1b2c3d.." + kExample.substr(16 + secret.size() + 1),
           kExample.substr(0, kExample.size() - 1) + "9",  // unused bits of the last digit are set
       }) {
    const Result<Token> parsed = parse_token(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(parsed.status().context().find("ERER"), std::string::npos);
    EXPECT_NE(parsed.status().context().find("rcuda-token create"), std::string::npos);
  }
}

TEST(TokenTest, Ids) {
  EXPECT_TRUE(is_token_id("01234567"));
  EXPECT_TRUE(is_token_id("89abcdef"));
  for (const char* text : {"", "0123456", "012345678", "0123456G", "0123456A", "../../.."}) {
    EXPECT_FALSE(is_token_id(text)) << text;
  }
}

TEST(TokenTest, NewTokensDiffer) {
  std::set<std::string> ids;
  std::set<Secret> secrets;
  for (int i = 0; i < 100; ++i) {
    const Result<Token> token = new_token(example().fingerprint);
    ASSERT_TRUE(token.ok());
    EXPECT_TRUE(is_token_id(token->id));
    EXPECT_EQ(token->fingerprint, example().fingerprint);
    EXPECT_EQ(*parse_token(format(*token)), *token);
    ids.insert(token->id);
    secrets.insert(token->secret);
  }
  EXPECT_GT(ids.size(), 90u);
  EXPECT_EQ(secrets.size(), 100u);
}

TEST(TokenTest, HashOfASecret) {
  // printf '%32s' '' | tr ' ' '\021' | sha256sum
  EXPECT_EQ(to_hex(*hash_of(example().secret)),
            "02d449a31fbb267c8f352e9968a79e3e5fc95c1bbeaa502fd6454ebde5a4bedc");
}

}  // namespace
}  // namespace rcuda::identity
