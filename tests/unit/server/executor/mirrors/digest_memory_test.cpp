#include "server/executor/mirrors/digest_memory.h"

#include <cstddef>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>

#include "server/quota/ledger.h"
#include "server/quota/quota.h"

namespace rcuda::server {
namespace {

constexpr wire::ObjectId kContext = 1, kOther = 2;
constexpr uint64_t kLimit = 1 << 20;

std::shared_ptr<Quota> quota_of(uint64_t host_memory) {
  Ledger ledger = std::move(Ledger::make()).value();
  ledger.clear(0);
  std::vector<UniqueFd> ledgers;
  ledgers.emplace_back(::fcntl(ledger.descriptor(), F_DUPFD_CLOEXEC, 0));
  return std::make_shared<Quota>(
      std::move(Quota::make({{.of = "user ada", .host_memory = host_memory}}, std::move(ledgers)))
          .value());
}

class DigestMemoryTest : public ::testing::Test {
 protected:
  DigestMemoryTest() {
    locked.clear();
    allocations = 0;
    driver_.cuMemHostAlloc = [](void** memory, size_t bytes, unsigned) {
      ++allocations;
      *memory = new std::byte[bytes];
      locked.insert(*memory);
      return CUDA_SUCCESS;
    };
    driver_.cuMemFreeHost = [](void* memory) {
      if (locked.erase(memory) == 0) return CUDA_ERROR_INVALID_VALUE;
      delete[] static_cast<std::byte*>(memory);
      return CUDA_SUCCESS;
    };
  }
  ~DigestMemoryTest() override {
    memory_.reset();
    for (void* const memory : locked) delete[] static_cast<std::byte*>(memory);
  }
  void* take(wire::ObjectId context, uint64_t bytes) {
    CUresult result;
    void* const memory = memory_->take(context, bytes, &result);
    EXPECT_EQ(memory != nullptr, result == CUDA_SUCCESS);
    return memory;
  }

  uint64_t room() { return meter_.room(MemoryMeter::kHost)->free; }

  static inline std::set<void*> locked;
  static inline int allocations = 0;
  api::DriverTable driver_{};
  wire::Work done_;
  MemoryMeter meter_{driver_, {}, quota_of(kLimit), &done_};
  std::unique_ptr<DigestMemory> memory_ = std::make_unique<DigestMemory>(driver_, meter_);
};

TEST_F(DigestMemoryTest, SmallMemoryIsUsedAgain) {
  void* const first = take(kContext, 5000);
  memory_->give(kContext, first, 5000, true);
  EXPECT_EQ(take(kContext, 6000), first);
  EXPECT_NE(take(kContext, 6000), first);
  EXPECT_EQ(allocations, 2);
}

TEST_F(DigestMemoryTest, MemoryThatKernelsMayWriteToIsGivenBack) {
  memory_->give(kContext, take(kContext, 100), 100, false);
  EXPECT_TRUE(locked.empty());
}

TEST_F(DigestMemoryTest, LargeMemoryIsGivenBack) {
  const uint64_t before = room();
  memory_->give(kContext, take(kContext, 100'000), 100'000, true);
  EXPECT_TRUE(locked.empty());
  EXPECT_EQ(room(), before);
}

TEST_F(DigestMemoryTest, MemoryEndsWithItsContext) {
  memory_->give(kContext, take(kContext, 100), 100, true);
  void* const other = take(kOther, 100);
  memory_->give(kOther, other, 100, true);
  memory_->forget_context(kContext);
  EXPECT_EQ(locked, std::set<void*>{other});
  EXPECT_NE(take(kContext, 100), other);
  EXPECT_EQ(take(kOther, 100), other);
}

TEST_F(DigestMemoryTest, WhatIsKeptCountsAndIsFreedInTheEnd) {
  const uint64_t before = room();
  memory_->give(kContext, take(kContext, 100), 100, true);
  EXPECT_LT(room(), before);
  memory_.reset();
  EXPECT_TRUE(locked.empty());
  EXPECT_EQ(room(), before);
}

TEST_F(DigestMemoryTest, BeyondTheQuotaThereIsNone) {
  EXPECT_EQ(take(kContext, kLimit + 1), nullptr);
  EXPECT_EQ(room(), kLimit);
}

}  // namespace
}  // namespace rcuda::server
