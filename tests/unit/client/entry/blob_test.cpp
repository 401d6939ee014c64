// Reads of blobs (api/blob.h) by the client: in pieces, and from a worker whose answers contradict
// themselves.
#include "api/blob.h"

#include <string>

#include <gtest/gtest.h>

#include "api/opcodes.h"
#include "common/wire/codec.h"
#include "generated/client/forward.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

class BlobTest : public TwoPuppetsTest {
 protected:
  using Answer = test::PuppetServer::Answer;
  static constexpr auto kDot = static_cast<uint16_t>(api::Opcode::rcuda_graph_dot);

  void SetUp() override {
    TwoPuppetsTest::SetUp();
    ASSERT_EQ(cuGraphCreate(&graph_, 0), CUDA_SUCCESS);
  }
  void TearDown() override {
    first().on(kDot, nullptr);
    first().on(wire::Custom::kBlobRead, nullptr);
    EXPECT_EQ(cuGraphDestroy(graph_), CUDA_SUCCESS);
    TwoPuppetsTest::TearDown();
  }

  // Sets the first reply: the size `total`, the first `first_bytes` bytes, and the blob's number.
  void answer(uint64_t total, size_t first_bytes, uint32_t number) {
    first().on(kDot, [=](const Command&) {
      wire::Encoder out;
      out.value(total);
      out.array(std::string(first_bytes, 'a').data(), first_bytes);
      out.value(number);
      return Answer{CUDA_SUCCESS, {out.body().begin(), out.body().end()}};
    });
  }
  CUresult read(Blob* blob) { return forward_rcuda_graph_dot(graph_, 0, blob); }

  CUgraph graph_ = nullptr;
};

TEST_F(BlobTest, OneReplyIsEnoughForASmallOne) {
  answer(100, 100, 0);
  Blob blob;
  EXPECT_EQ(read(&blob), CUDA_SUCCESS);
  EXPECT_EQ(blob, Blob(100, std::byte{'a'}));
  EXPECT_TRUE(sent(wire::Custom::kBlobRead).empty());
}

TEST_F(BlobTest, TheRestIsAskedForInOrder) {
  answer(1000, 100, 7);
  first().on(wire::Custom::kBlobRead, [](const Command& command) {
    const auto body = command.as<wire::BlobReadBody>();
    EXPECT_EQ(body.blob, 7u);
    return Answer{CUDA_SUCCESS, std::vector<std::byte>(300, std::byte(body.offset / 100))};
  });
  Blob blob, expected(100, std::byte{'a'});
  for (const int value : {1, 4, 7}) expected.insert(expected.end(), 300, std::byte(value));
  EXPECT_EQ(read(&blob), CUDA_SUCCESS);
  EXPECT_EQ(blob, expected);
  EXPECT_EQ(sent(wire::Custom::kBlobRead).size(), 3u);
}

TEST_F(BlobTest, AnErrorOnTheWayIsTheCallers) {
  answer(1000, 100, 7);
  first().on(wire::Custom::kBlobRead, [](const Command&) {
    return Answer{CUDA_ERROR_OUT_OF_MEMORY, {}};
  });
  Blob blob;
  EXPECT_EQ(read(&blob), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(BlobTest, WhatCannotBeIsRefused) {
  Blob blob;
  // More bytes than the total, a rest without a number, a number without a rest, too many bytes.
  answer(10, 11, 0);
  EXPECT_EQ(read(&blob), CUDA_ERROR_UNKNOWN);
  answer(10, 9, 0);
  EXPECT_EQ(read(&blob), CUDA_ERROR_UNKNOWN);
  answer(10, 10, 7);
  EXPECT_EQ(read(&blob), CUDA_ERROR_UNKNOWN);
  answer(api::kMaxBlobBytes + 1, 10, 7);
  EXPECT_EQ(read(&blob), CUDA_ERROR_UNKNOWN);
  // Pieces that never end, or that go past the end.
  answer(1000, 100, 7);
  for (const size_t bytes : {0, 901}) {
    first().on(wire::Custom::kBlobRead, [=](const Command&) {
      return Answer{CUDA_SUCCESS, std::vector<std::byte>(bytes)};
    });
    EXPECT_EQ(read(&blob), CUDA_ERROR_UNKNOWN) << bytes;
  }
}

}  // namespace
}  // namespace rcuda::client
