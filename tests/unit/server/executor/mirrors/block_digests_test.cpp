// Digests that a kernel computes, and those that a client sends.
#include "server/executor/mirrors/block_digests.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "api/opcodes.h"
#include "common/wire/codec.h"
#include "tests/support/session_harness.h"

namespace rcuda::server {
namespace {

class BlockDigestsTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBlock = BlockDigests::kLeastBlockBytes;
  static constexpr uint64_t kBytes = 5 * kBlock + 160;  // the last block is short

  void SetUp() override {
    CUdevice device;
    ASSERT_EQ(driver_.cuDeviceGet(&device, 0), CUDA_SUCCESS);
    ASSERT_EQ(driver_.cuDevicePrimaryCtxRetain(&context_.handle, device), CUDA_SUCCESS);
    ASSERT_EQ(driver_.cuCtxSetCurrent(context_.handle), CUDA_SUCCESS);
    CUdeviceptr address;
    ASSERT_EQ(driver_.cuMemAllocManaged(&address, kBytes, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
    memory_ = reinterpret_cast<std::byte*>(address);
    for (uint64_t i = 0; i < kBytes; ++i) memory_[i] = static_cast<std::byte>(i * i % 251);
    digests_ = BlockDigests::make(driver_, digest_memory_, context_, address, kBytes);
    ASSERT_NE(digests_, nullptr);
    stream_.context = &context_;
  }
  void TearDown() override {
    digests_.reset();
    digest_memory_.forget_context(context_.id);
    driver_.cuMemFree_v2(reinterpret_cast<CUdeviceptr>(memory_));
    driver_.cuDevicePrimaryCtxRelease_v2(0);
  }

  // The digests of `count` blocks from `first` on, as a client computes them.
  std::vector<wire::BlockDigest> of_client(uint64_t first, uint64_t count) const {
    std::vector<wire::BlockDigest> digests;
    for (uint64_t block = first; block < first + count; ++block) {
      const uint64_t at = block * kBlock;
      digests.push_back(wire::block_digest(memory_ + at, std::min(kBlock, kBytes - at), at));
    }
    return digests;
  }
  std::vector<uint64_t> changed() {
    EXPECT_EQ(digests_->compare(stream_), CUDA_SUCCESS);
    EXPECT_EQ(driver_.cuCtxSynchronize(), CUDA_SUCCESS);
    std::vector<uint64_t> blocks;
    for (uint64_t block = digests_->next_changed(0); block < digests_->block_count();
         block = digests_->next_changed(block + 1)) {
      blocks.push_back(block);
    }
    return blocks;
  }

  const api::DriverTable& driver_ = test::TestDriver::get().table;
  wire::Work done_;
  MemoryMeter meter_{driver_, {}, std::make_shared<Quota>(), &done_};
  DigestMemory digest_memory_{driver_, meter_};
  ContextState context_;
  SessionStream stream_;
  std::byte* memory_ = nullptr;
  std::unique_ptr<BlockDigests> digests_;
};

using Blocks = std::vector<uint64_t>;

TEST_F(BlockDigestsTest, AClientComputesTheSameDigests) {
  EXPECT_EQ(changed(), (Blocks{0, 1, 2, 3, 4, 5}));
  digests_->set(0, of_client(0, 6));
  EXPECT_EQ(changed(), Blocks{});
  memory_[2 * kBlock + 17] ^= std::byte{0x10};
  memory_[kBytes - 1] ^= std::byte{0x01};
  EXPECT_EQ(changed(), (Blocks{2, 5}));
  digests_->set(2 * kBlock, of_client(2, 1));
  EXPECT_EQ(changed(), Blocks{5});
}

TEST_F(BlockDigestsTest, WhatAKernelNotesIsEqualToo) {
  ASSERT_EQ(digests_->note(stream_, 0, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(changed(), Blocks{});
  digests_->set(kBlock, of_client(1, 2));
  EXPECT_EQ(changed(), Blocks{});
}

// As for a patch that begins inside a block.
TEST_F(BlockDigestsTest, TheFirstDigestIsThatOfTheBlockAtTheOffset) {
  digests_->set(0, of_client(0, 6));
  const std::vector<wire::BlockDigest> none(2, wire::BlockDigest::none());
  digests_->set(4 * kBlock + 4000, none);
  EXPECT_EQ(changed(), (Blocks{4, 5}));
}

TEST_F(BlockDigestsTest, NoBlockHasTheDigestOfNone) {
  digests_->set(0, of_client(0, 6));
  const std::vector<wire::BlockDigest> none = {wire::BlockDigest::none()};
  digests_->set(3 * kBlock, none);
  EXPECT_EQ(changed(), Blocks{3});
}

TEST_F(BlockDigestsTest, DigestsBehindTheEndAreIgnored) {
  digests_->set(0, of_client(0, 6));
  const std::vector<wire::BlockDigest> many(10, wire::BlockDigest::none());
  digests_->set(4 * kBlock, many);
  EXPECT_EQ(changed(), (Blocks{4, 5}));
  digests_->set(600 * kBlock, many);
  EXPECT_EQ(changed(), (Blocks{4, 5}));
}

// A green context has streams of its own, and the digests use one. The memory outlives it.
TEST(MirrorsTest, DigestsEndWithTheirGreenContext) {
  constexpr wire::ObjectId kGreen = wire::kFirstCreatedContext;
  constexpr size_t kBytes = 1 << 20;
  test::SessionHarness session;
  const auto call = [&](api::Opcode opcode, auto... values) {
    wire::Encoder out;
    (out.value(values), ...);
    const auto answer = session.client().call(static_cast<uint16_t>(opcode), out.body());
    return answer ? answer->result : CUDA_ERROR_UNKNOWN;
  };
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(4096, kBytes));
  const auto address = reinterpret_cast<uint64_t>(memory);
  const wire::HostExposeBody expose{address, kBytes, 0, 0, 1};
  ASSERT_EQ(session.client().call(wire::Custom::kHostExpose, expose)->result, CUDA_SUCCESS);
  ASSERT_EQ(call(api::Opcode::rcuda_green_create, int32_t{0}, 0u,
                 unsigned{CU_GREEN_CTX_DEFAULT_STREAM}, kGreen),
            CUDA_SUCCESS);
  const auto added = session.client().call(
      wire::Custom::kMirror, wire::MirrorBody{address, kBytes, 0, kBytes, 0}, {}, kGreen);
  ASSERT_EQ(added->result, CUDA_SUCCESS);
  wire::MirrorReply reply{};
  ASSERT_EQ(added->body.size(), sizeof reply);
  std::memcpy(&reply, added->body.data(), sizeof reply);
  EXPECT_NE(reply.block_bytes, 0u) << "no digests";
  const wire::MirrorNoteBody note{address, 0, kBytes, wire::kFetchStream, 0};
  ASSERT_TRUE(session.client().post(wire::Custom::kMirrorNote, note, {}, kGreen).ok());
  // A client waits for the context's work before it ends the context.
  const wire::SignalBody signal{wire::kFetchStream, 9, 1};
  ASSERT_TRUE(session.client().post(wire::Custom::kSignal, signal, {}, kGreen).ok());
  ASSERT_EQ(session.client().wait_word(9, 1), CUDA_SUCCESS);
  EXPECT_EQ(call(api::Opcode::rcuda_green_destroy, kGreen), CUDA_SUCCESS);
  // Blocks without a digest count as changed.
  const auto changes =
      session.client().call(wire::Custom::kMirrorChanges, wire::MirrorChangesBody{address});
  ASSERT_EQ(changes->result, CUDA_SUCCESS);
  wire::MirrorRun run{};
  ASSERT_EQ(changes->body.size(), sizeof(wire::MirrorState) + sizeof run);
  std::memcpy(&run, changes->body.data() + sizeof(wire::MirrorState), sizeof run);
  EXPECT_EQ(run.first, 0u);
  EXPECT_EQ(run.count, kBytes / reply.block_bytes);
  const wire::MirrorFetchBody gone{address};
  EXPECT_EQ(session.client().call(wire::Custom::kUnmirror, gone)->result, CUDA_SUCCESS);
  EXPECT_EQ(session.client()
                .call(wire::Custom::kHostUnexpose, wire::HostUnexposeBody{address, 0})
                ->result,
            CUDA_SUCCESS);
  EXPECT_TRUE(session.end().ok());
  std::free(memory);
}

}  // namespace
}  // namespace rcuda::server
