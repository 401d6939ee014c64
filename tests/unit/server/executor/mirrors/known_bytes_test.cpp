#include "server/executor/mirrors/known_bytes.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "common/wire/marked_bytes.h"

namespace rcuda::server {
namespace {

class KnownBytesTest : public ::testing::Test {
 protected:
  static constexpr size_t kMost = 1 << 16;

  // Applies the changes since the answer `answer` to the client's bytes, and checks them. Returns
  // false if KnownBytes does not know this answer or the changes exceed `most_bytes`.
  bool take(uint64_t answer, size_t most_bytes = kMost) {
    out_.clear();
    if (!known_.add_news(answer, now_, most_bytes, &out_, &news_)) return false;
    size_t at = 0;
    for (uint32_t i = 0; i < news_.pieces; ++i) {
      wire::MirrorPiece piece;
      std::memcpy(&piece, &out_[at], sizeof piece);
      at += sizeof piece;
      std::memcpy(&client_[piece.offset], &out_[at], piece.bytes);
      at += (piece.bytes + 7) & ~size_t{7};
    }
    EXPECT_EQ(at, out_.size());
    EXPECT_EQ(client_, now_);
    return true;
  }

  KnownBytes known_;
  std::vector<std::byte> now_ = std::vector<std::byte>(10'001), client_ = now_;
  std::vector<std::byte> out_;
  KnownBytes::News news_;
};

TEST_F(KnownBytesTest, OnlyWhatDiffersIsSent) {
  EXPECT_FALSE(take(1)) << "nothing was sent";
  const uint64_t all = known_.sent_all(now_);
  ASSERT_TRUE(take(all));
  EXPECT_EQ(news_.pieces, 0u);
  EXPECT_EQ(news_.answer, all) << "the client may go on with what it has";
  now_[0] = now_[70] = now_[5000] = now_[10'000] = std::byte{1};
  ASSERT_TRUE(take(all));
  EXPECT_EQ(news_.pieces, 3u);
  EXPECT_LT(out_.size(), 300u);
  ASSERT_TRUE(take(news_.answer));
  EXPECT_EQ(news_.pieces, 0u);
}

TEST_F(KnownBytesTest, AClientWithoutAnAnswerGetsAllBytes) {
  now_[0] = now_[10'000] = std::byte{1};
  EXPECT_FALSE(take(0, now_.size())) << "no room for the piece's head";
  ASSERT_TRUE(take(0));
  EXPECT_EQ(news_.pieces, 1u);
  now_[5] = std::byte{1};
  ASSERT_TRUE(take(news_.answer));
  EXPECT_LT(out_.size(), 100u);
  ASSERT_TRUE(take(0)) << "it did not take the answers over";
  EXPECT_GT(out_.size(), now_.size());
}

TEST_F(KnownBytesTest, AnAnswerThatWasNotTakenOverDoesNotCount) {
  const uint64_t all = known_.sent_all(now_);
  now_[1] = std::byte{1};
  ASSERT_TRUE(take(all));
  const uint64_t lost = news_.answer;
  client_[1] = std::byte{0};  // as if the client had not received the last answer
  now_[200] = std::byte{2};
  ASSERT_TRUE(take(all));
  EXPECT_EQ(news_.pieces, 2u);
  client_[200] = std::byte{0};
  ASSERT_TRUE(take(lost)) << "of another thread, which has only the first of the two";
  EXPECT_EQ(news_.pieces, 2u);
  now_[300] = std::byte{3};
  const uint64_t whole = known_.sent_all(now_);
  ASSERT_TRUE(take(news_.answer));
  EXPECT_EQ(news_.pieces, 1u);
  EXPECT_TRUE(take(whole));
  EXPECT_FALSE(take(news_.answer + 1)) << "there is no such answer yet";
}

TEST_F(KnownBytesTest, TheClientHasWhatItWrote) {
  const uint64_t all = known_.sent_all(now_);
  std::vector<std::byte> patch(64, std::byte{7});
  uint8_t mask[8] = {0xff};  // the first eight bytes
  known_.patched(128, patch, mask);
  for (auto* side : {&now_, &client_}) std::fill_n(side->begin() + 128, 8, std::byte{7});
  ASSERT_TRUE(take(all));
  EXPECT_EQ(news_.pieces, 0u);
  // The GPU writes the older bytes again.
  std::fill_n(now_.begin() + 128, 8, std::byte{0});
  ASSERT_TRUE(take(all));
  EXPECT_EQ(news_.pieces, 1u);
}

TEST_F(KnownBytesTest, TooManyBytesAreNotNamed) {
  const uint64_t all = known_.sent_all(now_);
  std::fill(now_.begin(), now_.end(), std::byte{1});
  EXPECT_FALSE(take(all, now_.size()));
  EXPECT_TRUE(out_.empty());
  EXPECT_TRUE(take(all, now_.size() + 16)) << "nothing was noted as sent";
}

TEST_F(KnownBytesTest, WhatIsForgottenIsSentAgain) {
  const uint64_t all = known_.sent_all(now_);
  known_.forget();
  EXPECT_FALSE(take(all));
}

}  // namespace
}  // namespace rcuda::server
