#include <atomic>
#include <chrono>
#include <thread>

#include <unistd.h>

#include "tests/unit/softgpu/driver/core_fixture.h"

namespace softgpu::driver {
namespace {

class PoolTest : public CoreTest {
 protected:
  void SetUp() override {
    CoreTest::SetUp();
    CUDA_OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    CUDA_OK(cuDeviceGetDefaultMemPool(&pool_, 0));
  }
  void TearDown() override {
    EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamDestroy_v2(stream_), CUDA_SUCCESS);
    cuuint64_t threshold = 0;
    EXPECT_EQ(cuMemPoolSetAttribute(pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold),
              CUDA_SUCCESS);
    EXPECT_EQ(cuMemPoolTrimTo(pool_, 0), CUDA_SUCCESS);
    EXPECT_EQ(free_bytes(), kDeviceBytes);
    CoreTest::TearDown();
  }
  static cuuint64_t attribute(CUmemoryPool pool, CUmemPool_attribute which) {
    cuuint64_t value = 0;
    EXPECT_EQ(cuMemPoolGetAttribute(pool, which, &value), CUDA_SUCCESS);
    return value;
  }
  CUdeviceptr allocate_async(size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cuMemAllocAsync(&address, bytes, stream_), CUDA_SUCCESS);
    return address;
  }

  CUstream stream_ = nullptr;
  CUmemoryPool pool_ = nullptr;
};

TEST_F(PoolTest, AllocatesAndFreesInStreamOrder) {
  const CUdeviceptr address = allocate_async(10'000);
  CUDA_OK(cuMemsetD8Async(address, 7, 10'000, stream_));
  std::vector<uint8_t> host(10'000);
  CUDA_OK(cuMemcpyDtoHAsync_v2(host.data(), address, host.size(), stream_));
  CUDA_OK(cuMemFreeAsync(address, stream_));
  EXPECT_EQ(cuMemFreeAsync(address, stream_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(host, std::vector<uint8_t>(10'000, 7));
  EXPECT_EQ(cuMemsetD8Async(address, 7, 1, stream_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(attribute(pool_, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0u);
  EXPECT_EQ(cuMemAllocAsync(nullptr, 16, stream_), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr none = 0;
  EXPECT_EQ(cuMemAllocAsync(&none, 0, stream_), CUDA_SUCCESS);
  EXPECT_EQ(none, 0u);
  EXPECT_EQ(cuMemFreeAsync(16, stream_), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(PoolTest, KeepsMemoryUpToTheThreshold) {
  cuuint64_t threshold = 8 << 20;
  CUDA_OK(cuMemPoolSetAttribute(pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  const CUdeviceptr address = allocate_async(4 << 20);
  EXPECT_EQ(attribute(pool_, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), size_t{4} << 20);
  CUDA_OK(cuMemFreeAsync(address, stream_));
  CUDA_OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(attribute(pool_, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0u);
  EXPECT_EQ(attribute(pool_, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), size_t{4} << 20);
  EXPECT_EQ(free_bytes(), kDeviceBytes - (size_t{4} << 20));
  EXPECT_EQ(allocate_async(4 << 20), address);  // the kept block again
  CUDA_OK(cuMemFreeAsync(address, stream_));
  CUDA_OK(cuStreamSynchronize(stream_));
  CUDA_OK(cuMemPoolTrimTo(pool_, 0));
  EXPECT_EQ(attribute(pool_, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0u);
  EXPECT_GE(attribute(pool_, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), size_t{4} << 20);
  cuuint64_t reset = 0;
  CUDA_OK(cuMemPoolSetAttribute(pool_, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &reset));
  EXPECT_EQ(attribute(pool_, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 0u);
  reset = 1;
  EXPECT_EQ(cuMemPoolSetAttribute(pool_, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &reset),
            CUDA_ERROR_INVALID_VALUE);
}

// A loop that never synchronises must not use more memory than one iteration needs.
TEST_F(PoolTest, ReusesQueuedFreesOfTheSameStream) {
  CUdeviceptr address = allocate_async(kDeviceBytes);
  for (int i = 0; i < 100; ++i) {
    CUDA_OK(cuMemsetD8Async(address, static_cast<unsigned char>(i), 1000, stream_));
    CUDA_OK(cuMemFreeAsync(address, stream_));
    address = allocate_async(kDeviceBytes);
  }
  CUDA_OK(cuMemsetD8Async(address, 0x77, 1000, stream_));
  CUDA_OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(read(address, 1000), std::vector<uint8_t>(1000, 0x77));
  CUDA_OK(cuMemFree_v2(address));
}

TEST_F(PoolTest, GivesWayBeforeItRunsOut) {
  cuuint64_t threshold = ~cuuint64_t{0};
  CUDA_OK(cuMemPoolSetAttribute(pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  CUDA_OK(cuMemFreeAsync(allocate_async(kDeviceBytes), stream_));
  // The free is queued in another stream: the pool waits for it and then takes another size.
  const CUdeviceptr other = allocate_async(kDeviceBytes / 2);
  CUdeviceptr more = 0;
  EXPECT_EQ(cuMemAllocAsync(&more, kDeviceBytes / 2 + 1, stream_), CUDA_ERROR_OUT_OF_MEMORY);
  CUDA_OK(cuMemFreeAsync(other, stream_));
}

TEST_F(PoolTest, PoolsAreIndependent) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  props.maxSize = 1 << 20;
  CUmemoryPool pool = nullptr;
  CUDA_OK(cuMemPoolCreate(&pool, &props));
  CUdeviceptr address = 0, more = 0;
  CUDA_OK(cuMemAllocFromPoolAsync(&address, 1 << 20, pool, stream_));
  EXPECT_EQ(cuMemAllocFromPoolAsync(&more, 1, pool, stream_), CUDA_ERROR_OUT_OF_MEMORY);
  CUmemoryPool found = nullptr;
  EXPECT_EQ(cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address),
            CUDA_SUCCESS);
  EXPECT_EQ(found, pool);
  CUDA_OK(cuDeviceSetMemPool(0, pool));
  EXPECT_EQ(cuDeviceGetMemPool(&found, 0), CUDA_SUCCESS);
  EXPECT_EQ(found, pool);
  // Destroyed while in use: the memory stays valid until it is freed.
  CUDA_OK(cuMemPoolDestroy(pool));
  EXPECT_EQ(cuDeviceGetMemPool(&found, 0), CUDA_SUCCESS);
  EXPECT_EQ(found, pool_);
  CUDA_OK(cuMemsetD8Async(address, 1, 1 << 20, stream_));
  CUDA_OK(cuMemFreeAsync(address, stream_));
  CUDA_OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolDestroy(pool_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocFromPoolAsync(&more, 1, pool, stream_), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(PoolTest, AFullPoolGivesUpWhatItKeeps) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  props.maxSize = 64 << 20;
  CUmemoryPool pool = nullptr;
  CUDA_OK(cuMemPoolCreate(&pool, &props));
  cuuint64_t threshold = ~cuuint64_t{0};
  CUDA_OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  CUdeviceptr address = 0, too_much = 0;
  CUDA_OK(cuMemAllocFromPoolAsync(&address, 64 << 20, pool, stream_));
  CUDA_OK(cuMemFreeAsync(address, stream_));
  CUDA_OK(cuStreamSynchronize(stream_));
  CUDA_OK(cuMemAllocFromPoolAsync(&address, 32 << 20, pool, stream_));
  EXPECT_EQ(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), cuuint64_t{32} << 20);
  EXPECT_EQ(cuMemAllocFromPoolAsync(&too_much, 33 << 20, pool, stream_), CUDA_ERROR_OUT_OF_MEMORY);
  CUDA_OK(cuMemFreeAsync(address, stream_));
  CUDA_OK(cuMemPoolDestroy(pool));
}

TEST_F(PoolTest, AccessIsGrantedToOtherDevices) {
  CUmemAccessDesc desc{};
  desc.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
  desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUmemAccess_flags flags{};
  EXPECT_EQ(cuMemPoolGetAccess(&flags, pool_, &desc.location), CUDA_SUCCESS);
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  EXPECT_EQ(cuMemPoolSetAccess(pool_, &desc, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolGetAccess(&flags, pool_, &desc.location), CUDA_SUCCESS);
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  desc.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  EXPECT_EQ(cuMemPoolSetAccess(pool_, &desc, 1), CUDA_SUCCESS);
  desc.location.id = 0;
  EXPECT_EQ(cuMemPoolSetAccess(pool_, &desc, 1), CUDA_ERROR_INVALID_DEVICE);
}

// A free that is still queued when its context is destroyed must not leak memory of the device.
TEST_F(PoolTest, QueuedFreesAreDoneBeforeTheContextEnds) {
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2(&other, 0, 0));
  CUstream blocked = nullptr;
  CUDA_OK(cuStreamCreate(&blocked, CU_STREAM_NON_BLOCKING));
  void* word = nullptr;
  CUDA_OK(cuMemHostAlloc(&word, 4, 0));
  *static_cast<uint32_t*>(word) = 0;
  CUdeviceptr address = 0;
  CUDA_OK(cuMemAllocAsync(&address, 1 << 20, blocked));
  CUDA_OK(cuStreamWaitValue32_v2(blocked, reinterpret_cast<CUdeviceptr>(word), 1,
                                 CU_STREAM_WAIT_VALUE_EQ));
  CUDA_OK(cuMemFreeAsync(address, blocked));
  std::thread opener([word] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic_ref<uint32_t>(*static_cast<uint32_t*>(word)) = 1;
  });
  CUDA_OK(cuCtxDestroy_v2(other));
  opener.join();
  EXPECT_EQ(free_bytes(), kDeviceBytes);
}

// A block that took over a queued free belongs to the device again: it outlives the context that
// freed it, and the free that did not execute frees nothing later.
TEST_F(PoolTest, ATakenOverBlockOutlivesTheContextThatFreedIt) {
  CUcontext other = nullptr, owner = nullptr;
  CUDA_OK(cuCtxCreate_v2(&other, 0, 0));
  CUstream stream = nullptr;
  CUDA_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  void* word = nullptr;
  CUDA_OK(cuCtxSetCurrent(context_));
  CUDA_OK(cuMemHostAlloc(&word, 4, 0));
  *static_cast<uint32_t*>(word) = 0;
  CUdeviceptr address = 0, again = 0;
  CUDA_OK(cuMemAllocAsync(&address, 1 << 20, stream));
  CUDA_OK(cuStreamWaitValue32_v2(stream, reinterpret_cast<CUdeviceptr>(word), 1,
                                 CU_STREAM_WAIT_VALUE_EQ));
  CUDA_OK(cuMemFreeAsync(address, stream));
  CUDA_OK(cuMemAllocAsync(&again, 1 << 20, stream));
  EXPECT_EQ(again, address);
  std::atomic_ref<uint32_t>(*static_cast<uint32_t*>(word)) = 1;
  CUDA_OK(cuCtxDestroy_v2(other));
  CUDA_OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, again));
  EXPECT_EQ(owner, context_);
  CUDA_OK(cuMemFreeAsync(again, stream_));
  CUDA_OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(attribute(pool_, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0u);
  EXPECT_EQ(cuMemsetD8_v2(again, 0, 1), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuMemFreeHost(word));
}

// Each context has a legacy stream of its own, which does not wait for those of others.
TEST_F(PoolTest, LegacyStreamsOfTwoContextsDoNotReuseEachOthersFrees) {
  void* word = nullptr;
  CUDA_OK(cuMemHostAlloc(&word, 4, 0));
  *static_cast<uint32_t*>(word) = 0;
  CUdeviceptr address = 0, other_address = 0;
  CUDA_OK(cuMemAllocAsync(&address, 1 << 20, nullptr));
  CUDA_OK(cuStreamWaitValue32_v2(nullptr, reinterpret_cast<CUdeviceptr>(word), 1,
                                 CU_STREAM_WAIT_VALUE_EQ));
  CUDA_OK(cuMemFreeAsync(address, nullptr));
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2(&other, 0, 0));
  CUDA_OK(cuMemAllocAsync(&other_address, 1 << 20, nullptr));
  EXPECT_NE(other_address, address);
  std::atomic_ref<uint32_t>(*static_cast<uint32_t*>(word)) = 1;
  CUDA_OK(cuMemFreeAsync(other_address, nullptr));
  CUDA_OK(cuCtxDestroy_v2(other));
  CUDA_OK(cuCtxSynchronize());
  CUDA_OK(cuMemFreeHost(word));
}

TEST_F(PoolTest, WhatACaptureForbidsChangesNothing) {
  const CUdeviceptr address = allocate_async(1 << 20);
  CUstream blocking = nullptr;
  CUDA_OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  const auto refused = [&](auto call) {
    CUgraph graph = nullptr;
    CUDA_OK(cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_EQ(call(), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    EXPECT_EQ(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(attribute(pool_, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), cuuint64_t{1} << 20);
  };
  CUdeviceptr more = 0;
  refused([&] { return cuMemAllocAsync(&more, 1 << 20, CU_STREAM_LEGACY); });
  refused([&] { return cuMemFreeAsync(address, CU_STREAM_LEGACY); });
  EXPECT_EQ(more, 0u);
  CUDA_OK(cuMemFreeAsync(address, stream_));
}

TEST_F(PoolTest, FreesPlainMemoryInStreamOrder) {
  const CUdeviceptr address = allocate(1 << 20);
  CUDA_OK(cuMemFreeAsync(address, stream_));
  CUDA_OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(free_bytes(), kDeviceBytes);
}

TEST_F(PoolTest, SharesPoolsByDescriptor) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemoryPool pool = nullptr, imported = nullptr;
  CUDA_OK(cuMemPoolCreate(&pool, &props));
  int file = -1;
  CUDA_OK(
      cuMemPoolExportToShareableHandle(&file, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CUDA_OK(cuMemPoolImportFromShareableHandle(&imported, reinterpret_cast<void*>(intptr_t{file}),
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  ::close(file);
  CUdeviceptr address = 0, same = 0;
  CUDA_OK(cuMemAllocFromPoolAsync(&address, 50'000, pool, stream_));
  CUDA_OK(cuStreamSynchronize(stream_));
  CUmemPoolPtrExportData data{};
  CUDA_OK(cuMemPoolExportPointer(&data, address));
  CUDA_OK(cuMemPoolImportPointer(&same, imported, &data));
  EXPECT_NE(same, address);
  const std::vector<uint8_t> bytes = noise(50'000);
  write(address, bytes);
  EXPECT_EQ(read(same, bytes.size()), bytes);
  CUDA_OK(cuMemFreeAsync(same, stream_));
  CUDA_OK(cuMemFreeAsync(address, stream_));
  CUDA_OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(cuMemAllocFromPoolAsync(&address, 16, imported, stream_), CUDA_ERROR_INVALID_VALUE);
  data.reserved[0] ^= 1;
  EXPECT_EQ(cuMemPoolImportPointer(&same, imported, &data), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuMemPoolDestroy(imported));
  CUDA_OK(cuMemPoolDestroy(pool));
}

}  // namespace
}  // namespace softgpu::driver
