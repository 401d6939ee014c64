#include <algorithm>
#include <thread>

#include <sys/mman.h>

#include "tests/unit/softgpu/driver/core_fixture.h"

namespace softgpu::driver {
namespace {

class MemoryTest : public CoreTest {};

TEST_F(MemoryTest, RunsOutAtExactlyTheDevicesMemory) {
  CUdeviceptr all = allocate(kDeviceBytes), more = 0;
  EXPECT_EQ(free_bytes(), 0u);
  EXPECT_EQ(cuMemAlloc_v2(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
  CUDA_OK(cuMemFree_v2(all));
  EXPECT_EQ(cuMemAlloc_v2(&more, kDeviceBytes + 1), CUDA_ERROR_OUT_OF_MEMORY);
  std::vector<CUdeviceptr> blocks;
  for (size_t i = 0; i < kDeviceBytes / (size_t{1} << 20); ++i) blocks.push_back(allocate(1 << 20));
  EXPECT_EQ(cuMemAlloc_v2(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
  CUDA_OK(cuMemFree_v2(blocks.back()));
  EXPECT_EQ(cuMemAlloc_v2(&more, 1 << 20), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc_v2(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(MemoryTest, AllocationsAreDisjointAndAligned) {
  std::mt19937 random(3);
  std::vector<std::pair<CUdeviceptr, size_t>> live;
  for (int i = 0; i < 400; ++i) {
    if (!live.empty() && random() % 3 == 0) {
      std::swap(live[random() % live.size()], live.back());
      CUDA_OK(cuMemFree_v2(live.back().first));
      live.pop_back();
      continue;
    }
    const size_t bytes = random() % 8 == 0 ? random() % (3 << 20) + 1 : random() % 5000 + 1;
    CUdeviceptr address = 0;
    if (cuMemAlloc_v2(&address, bytes) != CUDA_SUCCESS) continue;
    EXPECT_EQ(address % 256, 0u);
    live.emplace_back(address, bytes);
  }
  std::sort(live.begin(), live.end());
  for (size_t i = 1; i < live.size(); ++i) {
    EXPECT_LE(live[i - 1].first + live[i - 1].second, live[i].first);
  }
  for (const auto& [address, bytes] : live) CUDA_OK(cuMemFree_v2(address));
  EXPECT_EQ(free_bytes(), kDeviceBytes);
}

TEST_F(MemoryTest, RejectsWhatCannotBeFreed) {
  CUdeviceptr address = allocate(4096);
  void* host = nullptr;
  CUDA_OK(cuMemHostAlloc(&host, 4096, 0));
  EXPECT_EQ(cuMemFree_v2(0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree_v2(address + 256), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree_v2(reinterpret_cast<CUdeviceptr>(host)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeHost(reinterpret_cast<void*>(address)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree_v2(address), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeHost(host), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeHost(host), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAlloc_v2(&address, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAlloc_v2(nullptr, 16), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryTest, UseAfterFreeIsRejected) {
  CUdeviceptr address = allocate(4096);
  CUDA_OK(cuMemFree_v2(address));
  uint32_t word = 0;
  EXPECT_EQ(cuMemcpyDtoH_v2(&word, address, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoD_v2(address, &word, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD32_v2(address, 0, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);  // the error is not sticky
}

TEST_F(MemoryTest, PitchedRowsAreAligned) {
  CUdeviceptr address = 0;
  size_t pitch = 0;
  CUDA_OK(cuMemAllocPitch_v2(&address, &pitch, 1000, 7, 4));
  EXPECT_EQ(pitch, 1024u);
  size_t bytes = 0;
  EXPECT_EQ(cuMemGetAddressRange_v2(nullptr, &bytes, address + 5), CUDA_SUCCESS);
  EXPECT_EQ(bytes, pitch * 7);
  EXPECT_EQ(cuMemAllocPitch_v2(&address, &pitch, 1000, 7, 3), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocPitch_v2(&address, &pitch, 0, 7, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocPitch_v2(&address, &pitch, ~size_t{0}, 7, 4), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryTest, AddressRangeFindsTheAllocation) {
  CUdeviceptr address = allocate(5000), base = 0;
  size_t bytes = 0;
  EXPECT_EQ(cuMemGetAddressRange_v2(&base, &bytes, address + 4999), CUDA_SUCCESS);
  EXPECT_EQ(base, address);
  EXPECT_EQ(bytes, 5000u);
  EXPECT_EQ(cuMemGetAddressRange_v2(&base, &bytes, address + 5000), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuMemGetAddressRange_v2(&base, &bytes, 16), CUDA_ERROR_NOT_FOUND);
}

TEST_F(MemoryTest, HostMemoryHasOneAddress) {
  void* host = nullptr;
  CUDA_OK(cuMemHostAlloc(&host, 10'000, CU_MEMHOSTALLOC_PORTABLE));
  static_cast<char*>(host)[9'999] = 5;
  CUdeviceptr device = 0;
  EXPECT_EQ(cuMemHostGetDevicePointer_v2(&device, host, 0), CUDA_SUCCESS);
  EXPECT_EQ(device, reinterpret_cast<CUdeviceptr>(host));
  unsigned flags = 0;
  EXPECT_EQ(cuMemHostGetFlags(&flags, host), CUDA_SUCCESS);
  EXPECT_EQ(flags, unsigned{CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP});
  EXPECT_EQ(cuMemHostAlloc(&host, 16, 0x80), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemHostAlloc(&host, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(host, nullptr);
  int local = 0;
  EXPECT_EQ(cuMemHostGetDevicePointer_v2(&device, &local, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryTest, RegistersMemoryOnce) {
  std::vector<uint8_t> memory(100'000);
  void* begin = memory.data();
  CUDA_OK(cuMemHostRegister_v2(begin, memory.size(), 0));
  EXPECT_EQ(cuMemHostRegister_v2(memory.data() + 50'000, 10, 0),
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CUdeviceptr device = 0;
  EXPECT_EQ(cuMemHostGetDevicePointer_v2(&device, memory.data() + 7, 0), CUDA_SUCCESS);
  EXPECT_EQ(device, reinterpret_cast<CUdeviceptr>(memory.data()) + 7);
  EXPECT_EQ(cuMemHostUnregister(memory.data() + 7), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemHostUnregister(begin), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostUnregister(begin), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(cuMemHostRegister_v2(begin, memory.size(), 0x40), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemHostRegister_v2(nullptr, 16, 0), CUDA_ERROR_INVALID_VALUE);
  void* unmapped = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ::munmap(unmapped, 4096);
  EXPECT_EQ(cuMemHostRegister_v2(unmapped, 4096, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryTest, ManagedMemoryIsSharedAndUncounted) {
  CUdeviceptr managed = 0;
  CUDA_OK(cuMemAllocManaged(&managed, 1 << 20, CU_MEM_ATTACH_GLOBAL));
  EXPECT_EQ(free_bytes(), kDeviceBytes);
  CUDA_OK(cuMemsetD32_v2(managed, 0x01020304, 1 << 18));
  EXPECT_EQ(reinterpret_cast<uint32_t*>(managed)[1000], 0x01020304u);
  unsigned is_managed = 0;
  EXPECT_EQ(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, managed + 4),
            CUDA_SUCCESS);
  EXPECT_EQ(is_managed, 1u);
  EXPECT_EQ(cuMemAdvise(managed, 1 << 20, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 1), CUDA_SUCCESS);
  int location = -9;
  EXPECT_EQ(cuMemRangeGetAttribute(&location, sizeof location,
                                   CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, managed, 1 << 20),
            CUDA_SUCCESS);
  EXPECT_EQ(location, 1);
  EXPECT_EQ(cuMemPrefetchAsync(managed, 1 << 20, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPrefetchAsync(managed, 1 << 20, 9, nullptr), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuMemPrefetchAsync(allocate(16), 16, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocManaged(&managed, 16, 7), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree_v2(managed), CUDA_SUCCESS);
}

TEST_F(MemoryTest, AdviceIsKeptPerRange) {
  CUdeviceptr managed = 0;
  CUDA_OK(cuMemAllocManaged(&managed, 1 << 20, CU_MEM_ATTACH_GLOBAL));
  const CUmemLocation device{CU_MEM_LOCATION_TYPE_DEVICE, {0}},
      host{CU_MEM_LOCATION_TYPE_HOST, {0}};
  CUDA_OK(cuMemAdvise_v2(managed, 1 << 20, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
  CUDA_OK(cuMemAdvise_v2(managed, 1 << 20, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
  CUDA_OK(cuMemAdvise_v2(managed, 1 << 20, CU_MEM_ADVISE_SET_ACCESSED_BY, device));
  int read_mostly = 0, preferred = 0, accessed_by[3] = {};
  void* data[] = {&read_mostly, &preferred, accessed_by};
  size_t bytes[] = {sizeof(int), sizeof(int), sizeof accessed_by};
  CUmem_range_attribute attributes[] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
                                        CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION,
                                        CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY};
  CUDA_OK(cuMemRangeGetAttributes(data, bytes, attributes, 3, managed, 1 << 20));
  EXPECT_EQ(read_mostly, 1);
  EXPECT_EQ(preferred, CU_DEVICE_CPU);
  EXPECT_EQ(accessed_by[0], 0);
  EXPECT_EQ(accessed_by[1], CU_DEVICE_INVALID);
  CUDA_OK(cuMemAdvise_v2(managed, 1 << 20, CU_MEM_ADVISE_UNSET_READ_MOSTLY, device));
  CUDA_OK(cuMemAdvise_v2(managed, 1 << 20, CU_MEM_ADVISE_UNSET_ACCESSED_BY, device));
  CUDA_OK(cuMemRangeGetAttributes(data, bytes, attributes, 3, managed, 1 << 20));
  EXPECT_EQ(read_mostly, 0);
  EXPECT_EQ(accessed_by[0], CU_DEVICE_INVALID);
  EXPECT_EQ(cuMemRangeGetAttributes(data, bytes, attributes, 0, managed, 1 << 20),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemRangeGetAttribute(data[0], 3, attributes[0], managed, 1 << 20),
            CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuMemFree_v2(managed));
}

TEST_F(MemoryTest, PrefetchesAndDiscardsComeInBatches) {
  constexpr size_t kBytes = 1 << 20;
  CUstream stream = nullptr;
  CUDA_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr ranges[3] = {};
  size_t bytes[] = {kBytes, kBytes, kBytes};
  for (CUdeviceptr& range : ranges) {
    CUDA_OK(cuMemAllocManaged(&range, kBytes, CU_MEM_ATTACH_GLOBAL));
    CUDA_OK(cuMemsetD8_v2(range, 7, kBytes));
  }
  CUmemLocation locations[] = {{CU_MEM_LOCATION_TYPE_DEVICE, {0}},
                               {CU_MEM_LOCATION_TYPE_HOST, {0}}};
  size_t first[] = {0, 2};
  CUDA_OK(cuMemPrefetchBatchAsync(ranges, bytes, 3, locations, first, 2, 0, stream));
  CUDA_OK(cuStreamSynchronize(stream));
  const int expected[] = {0, 0, CU_DEVICE_CPU};
  for (int i = 0; i < 3; ++i) {
    int location = -9;
    CUDA_OK(cuMemRangeGetAttribute(&location, sizeof location,
                                   CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, ranges[i],
                                   kBytes));
    EXPECT_EQ(location, expected[i]) << i;
    EXPECT_EQ(read(ranges[i] + kBytes - 1, 1)[0], 7);
  }
  CUDA_OK(cuMemDiscardBatchAsync(ranges, bytes, 1, 0, stream));
  CUDA_OK(cuMemDiscardAndPrefetchBatchAsync(ranges + 1, bytes, 2, locations, first, 1, 0, stream));
  CUDA_OK(cuStreamSynchronize(stream));
  CUDA_OK(cuMemsetD8_v2(ranges[0], 8, kBytes));
  EXPECT_EQ(read(ranges[0], 1)[0], 8);

  EXPECT_EQ(cuMemPrefetchBatchAsync(ranges, bytes, 3, locations, first, 2, 0, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPrefetchBatchAsync(ranges, bytes, 3, locations, first, 2, 1, stream),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPrefetchBatchAsync(ranges, bytes, 2, locations, first, 2, 0, stream),
            CUDA_ERROR_INVALID_VALUE);
  first[0] = 1;
  EXPECT_EQ(cuMemPrefetchBatchAsync(ranges, bytes, 3, locations, first, 2, 0, stream),
            CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr plain = allocate(kBytes);
  EXPECT_EQ(cuMemDiscardBatchAsync(&plain, bytes, 1, 0, stream), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuStreamDestroy_v2(stream));
  for (const CUdeviceptr range : ranges) EXPECT_EQ(cuMemFree_v2(range), CUDA_SUCCESS);
}

TEST_F(MemoryTest, OlderWaysToPinMemory) {
  void* host = nullptr;
  CUDA_OK(cuMemAllocHost_v2(&host, 5000));
  CUdeviceptr device = 0;
  CUDA_OK(cuMemHostGetDevicePointer_v2(&device, host, 0));
  CUDA_OK(cuMemsetD8_v2(device, 9, 5000));
  CUDA_OK(cuCtxSynchronize());
  EXPECT_EQ(static_cast<uint8_t*>(host)[4999], 9);
  CUDA_OK(cuMemFreeHost(host));
  std::vector<uint8_t> memory(10'000);
  CUDA_OK(cuMemHostRegister(memory.data(), memory.size(), 0));
  CUDA_OK(cuMemHostUnregister(memory.data()));
}

TEST_F(MemoryTest, ManagedMemoryIsAttachedToStreams) {
  CUdeviceptr managed = 0;
  CUstream stream = nullptr;
  CUDA_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUDA_OK(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_HOST));
  CUDA_OK(cuStreamAttachMemAsync(stream, managed, 0, CU_MEM_ATTACH_SINGLE));
  CUDA_OK(cuStreamAttachMemAsync(stream, managed, 4096, CU_MEM_ATTACH_GLOBAL));
  CUDA_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(cuStreamAttachMemAsync(stream, managed, 0, 9), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamAttachMemAsync(stream, managed, 100, CU_MEM_ATTACH_GLOBAL),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamAttachMemAsync(nullptr, managed, 0, CU_MEM_ATTACH_SINGLE),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamAttachMemAsync(stream, allocate(64), 0, CU_MEM_ATTACH_GLOBAL),
            CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuMemFree_v2(managed));
  CUDA_OK(cuStreamDestroy_v2(stream));
}

TEST_F(MemoryTest, PointerAttributesOfDeviceMemory) {
  const CUdeviceptr address = allocate(5000);
  CUcontext context = nullptr;
  EXPECT_EQ(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address + 1),
            CUDA_SUCCESS);
  EXPECT_EQ(context, context_);
  unsigned type = 0;
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address), CUDA_SUCCESS);
  EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_DEVICE});
  int ordinal = -1;
  EXPECT_EQ(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address),
            CUDA_SUCCESS);
  EXPECT_EQ(ordinal, 0);
  CUdeviceptr start = 0;
  size_t bytes = 0;
  EXPECT_EQ(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address + 9),
            CUDA_SUCCESS);
  EXPECT_EQ(cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address + 9),
            CUDA_SUCCESS);
  EXPECT_EQ(start, address);
  EXPECT_EQ(bytes, 5000u);
  void* host = nullptr;
  EXPECT_EQ(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, address),
            CUDA_ERROR_INVALID_VALUE);
  unsigned long long first = 0, second = 0;
  EXPECT_EQ(cuPointerGetAttribute(&first, CU_POINTER_ATTRIBUTE_BUFFER_ID, address), CUDA_SUCCESS);
  EXPECT_EQ(cuPointerGetAttribute(&second, CU_POINTER_ATTRIBUTE_BUFFER_ID, allocate(16)),
            CUDA_SUCCESS);
  EXPECT_NE(first, second);
  unsigned on = 1, found = 0;
  EXPECT_EQ(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address), CUDA_SUCCESS);
  EXPECT_EQ(cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address), CUDA_SUCCESS);
  EXPECT_EQ(found, 1u);
  EXPECT_EQ(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_BUFFER_ID, address),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryTest, PointerAttributesOfUnknownMemory) {
  int local = 0;
  const auto address = reinterpret_cast<CUdeviceptr>(&local);
  unsigned type = 77;
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address),
            CUDA_ERROR_INVALID_VALUE);
  CUcontext context = context_;
  int ordinal = 3;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      CU_POINTER_ATTRIBUTE_CONTEXT,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* data[] = {&type, &context, &ordinal};
  EXPECT_EQ(cuPointerGetAttributes(3, attributes, data, address), CUDA_SUCCESS);
  EXPECT_EQ(type, 0u);
  EXPECT_EQ(context, nullptr);
  EXPECT_EQ(ordinal, CU_DEVICE_INVALID);
}

TEST_F(MemoryTest, MemoryOfAContextGoesWithIt) {
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2(&other, 0, 0));
  const CUdeviceptr address = allocate(1 << 20);
  void* host = nullptr;
  CUDA_OK(cuMemHostAlloc(&host, 4096, 0));
  CUDA_OK(cuCtxDestroy_v2(other));
  EXPECT_EQ(free_bytes(), kDeviceBytes);
  EXPECT_EQ(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeHost(host), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryTest, ThreadsAllocateAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < 200; ++i) {
        CUdeviceptr address = 0;
        const size_t bytes = random() % 100'000 + 1;
        ASSERT_EQ(cuMemAlloc_v2(&address, bytes), CUDA_SUCCESS);
        ASSERT_EQ(cuMemsetD8_v2(address, static_cast<unsigned char>(t), bytes), CUDA_SUCCESS);
        uint8_t last = 0;
        ASSERT_EQ(cuMemcpyDtoH_v2(&last, address + bytes - 1, 1), CUDA_SUCCESS);
        ASSERT_EQ(last, t);
        ASSERT_EQ(cuMemFree_v2(address), CUDA_SUCCESS);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(free_bytes(), kDeviceBytes);
}

}  // namespace
}  // namespace softgpu::driver
