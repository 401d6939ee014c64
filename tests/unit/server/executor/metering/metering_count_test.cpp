// A session without a limit: its memory is counted, and no allocation is refused.
#include <memory>
#include <optional>

#include <gtest/gtest.h>

#include "server/executor/metering/meters.h"
#include "tests/support/session_harness.h"

namespace rcuda::server {
namespace {

constexpr uint64_t kMiB = 1u << 20;
constexpr uint32_t kOrdinal = 5;  // the server's number of the first device

class CountingTest : public ::testing::Test {
 protected:
  CountingTest() {
    plain().cuDevicePrimaryCtxRetain(&context_, 0);
    metered_.emplace(plain(), std::vector<SessionDevice>{{0, context_, kOrdinal}},
                     std::make_shared<Quota>(), SessionLimits{}, &done_);
    plain().cuCtxSetCurrent(context_);
  }
  ~CountingTest() override {
    metered_.reset();
    plain().cuDevicePrimaryCtxRelease_v2(0);
  }

  static const api::DriverTable& plain() { return test::TestDriver::get().table; }
  const api::DriverTable& table() { return metered_->table(); }
  uint64_t held() { return metered_->memory.held(kOrdinal); }
  uint64_t peak() {
    metered_->memory.note_peak();
    return done_[wire::Counter::kPeakMemory];
  }
  CUdeviceptr allocate(uint64_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(table().cuMemAlloc_v2(&address, bytes), CUDA_SUCCESS);
    return address;
  }

  wire::Work done_;
  CUcontext context_ = nullptr;
  std::optional<Meters> metered_;
};

TEST_F(CountingTest, ThePeakStaysWhenMemoryIsFreed) {
  const CUdeviceptr first = allocate(40 * kMiB), second = allocate(24 * kMiB);
  EXPECT_EQ(held(), 64 * kMiB);
  EXPECT_EQ(table().cuMemFree_v2(first), CUDA_SUCCESS);
  EXPECT_EQ(held(), 24 * kMiB);
  EXPECT_EQ(peak(), 64 * kMiB);
  EXPECT_EQ(table().cuMemFree_v2(second), CUDA_SUCCESS);
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(peak(), 64 * kMiB);
}

TEST_F(CountingTest, WhatTheDriverRefusesIsInNoPeak) {
  CUdeviceptr address = 0;
  EXPECT_EQ(table().cuMemAlloc_v2(&address, uint64_t{1} << 50), CUDA_ERROR_OUT_OF_MEMORY);
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  EXPECT_NE(table().cuMemCreate(&handle, uint64_t{1} << 50, &properties, 0), CUDA_SUCCESS);
  properties.location.id = 77;
  EXPECT_EQ(table().cuMemCreate(&handle, 2 * kMiB, &properties, 0), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(peak(), 0u);
  EXPECT_EQ(held(), 0u);
}

TEST_F(CountingTest, MappedMemoryAndArraysCount) {
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  ASSERT_EQ(table().cuMemCreate(&handle, 6 * kMiB, &properties, 0), CUDA_SUCCESS);
  const CUDA_ARRAY_DESCRIPTOR shape{1024, 1024, CU_AD_FORMAT_FLOAT, 1};
  CUarray array = nullptr;
  ASSERT_EQ(table().cuArrayCreate_v2(&array, &shape), CUDA_SUCCESS);
  EXPECT_EQ(held(), 10 * kMiB);
  EXPECT_EQ(table().cuArrayDestroy(array), CUDA_SUCCESS);
  EXPECT_EQ(table().cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(held(), 0u);
}

TEST_F(CountingTest, MemoryOfPoolsCountsAsThePoolHoldsIt) {
  CUstream stream = nullptr;
  ASSERT_EQ(table().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  ASSERT_EQ(table().cuMemAllocAsync(&address, 32 * kMiB, stream), CUDA_SUCCESS);
  EXPECT_GE(held(), 32 * kMiB);
  ASSERT_EQ(table().cuMemFreeAsync(address, stream), CUDA_SUCCESS);
  ASSERT_EQ(table().cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(held(), 0u);
  EXPECT_GE(peak(), 32 * kMiB);
  EXPECT_EQ(table().cuStreamDestroy_v2(stream), CUDA_SUCCESS);
}

TEST_F(CountingTest, AProgramsPoolEndsAtOnce) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(table().cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  ASSERT_EQ(table().cuMemAllocFromPoolAsync(&address, 8 * kMiB, pool, nullptr), CUDA_SUCCESS);
  EXPECT_GE(held(), 8 * kMiB);
  ASSERT_EQ(table().cuMemFreeAsync(address, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(table().cuMemPoolDestroy(pool), CUDA_SUCCESS);
  EXPECT_EQ(held(), 0u);
}

TEST_F(CountingTest, APoolThatTheDriverKeepsStaysCounted) {
  api::DriverTable refusing = plain();
  refusing.cuMemPoolDestroy = [](CUmemoryPool) { return CUDA_ERROR_NOT_PERMITTED; };
  metered_.emplace(refusing, std::vector<SessionDevice>{{0, context_, kOrdinal}},
                   std::make_shared<Quota>(), SessionLimits{}, &done_);
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(table().cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  ASSERT_EQ(table().cuMemAllocFromPoolAsync(&address, 8 * kMiB, pool, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(table().cuMemPoolDestroy(pool), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_GE(held(), 8 * kMiB);
  ASSERT_EQ(table().cuMemFreeAsync(address, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(plain().cuMemPoolDestroy(pool), CUDA_SUCCESS);
  metered_.reset();
}

TEST_F(CountingTest, PlainMemoryFreedInStreamOrderCountsAsFreeAtOnce) {
  ASSERT_EQ(table().cuMemFreeAsync(allocate(16 * kMiB), nullptr), CUDA_SUCCESS);
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(peak(), 16 * kMiB);
}

TEST_F(CountingTest, MemoryOfGraphsCountsFromTheirLaunch) {
  CUgraph graph = nullptr;
  ASSERT_EQ(table().cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  CUDA_MEM_ALLOC_NODE_PARAMS parameters{};
  parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  parameters.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  parameters.bytesize = 40 * kMiB;
  CUgraphNode allocation = nullptr, end = nullptr;
  ASSERT_EQ(table().cuGraphAddMemAllocNode(&allocation, graph, nullptr, 0, &parameters),
            CUDA_SUCCESS);
  ASSERT_EQ(table().cuGraphAddMemFreeNode(&end, graph, &allocation, 1, parameters.dptr),
            CUDA_SUCCESS);
  CUgraphExec executable = nullptr;
  ASSERT_EQ(table().cuGraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(table().cuGraphLaunch(executable, nullptr), CUDA_SUCCESS);
  EXPECT_GE(held(), 40 * kMiB);
  ASSERT_EQ(table().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(table().cuGraphExecDestroy(executable), CUDA_SUCCESS);
  EXPECT_EQ(table().cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(table().cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
  EXPECT_EQ(held(), 0u);
  EXPECT_GE(peak(), 40 * kMiB);
}

TEST_F(CountingTest, AContextEndsWithItsMemory) {
  CUcontext made = nullptr;
  ASSERT_EQ(table().cuCtxCreate_v2(&made, 0, 0), CUDA_SUCCESS);
  allocate(12 * kMiB);
  EXPECT_EQ(held(), 12 * kMiB);
  EXPECT_EQ(table().cuCtxDestroy_v2(made), CUDA_SUCCESS);
  EXPECT_EQ(held(), 0u);
}

TEST(WorkTest, APeakIsTheLargestOfSeveralAndNoSum) {
  wire::Work sum, other;
  sum.held(5);
  other.held(7);
  other[wire::Counter::kLaunches] = 2;
  sum += other;
  sum += other;
  EXPECT_EQ(sum[wire::Counter::kPeakMemory], 7u);
  EXPECT_EQ(sum[wire::Counter::kLaunches], 4u);
}

}  // namespace
}  // namespace rcuda::server
