// A quota of device memory against programs that try to break it: each kind of memory on softgpu,
// through a metered table.
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "server/executor/metering/stream_frees.h"
#include "tests/unit/server/executor/metering/metering_fixture.h"

namespace rcuda::server {
namespace {

TEST_F(MeteringTest, BesideAnotherSessionATableIsUntouchedWithoutALimit) {
  const Meters free(plain(), {}, std::make_shared<Quota>(), {}, &done_);
  EXPECT_EQ(&free.table(), &plain());
}

TEST_F(MeteringTest, PlainMemoryEndsAtTheLimit) {
  const CUdeviceptr first = allocate(40 * kMiB);
  CUdeviceptr second = 0;
  EXPECT_EQ(table().cuMemAlloc_v2(&second, 40 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  second = allocate(24 * kMiB);
  CUdeviceptr third = 0;
  EXPECT_EQ(table().cuMemAlloc_v2(&third, 1), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(table().cuMemFree_v2(first), CUDA_SUCCESS);
  EXPECT_EQ(table().cuMemFree_v2(allocate(40 * kMiB)), CUDA_SUCCESS);
  EXPECT_EQ(table().cuMemFree_v2(second), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
}

TEST_F(MeteringTest, TheFirstRefusalOfASessionIsReported) {
  std::vector<std::string> told;
  metered_->memory.tell = [&](const std::string& text) { told.push_back(text); };
  const CUdeviceptr first = allocate(40 * kMiB);
  EXPECT_TRUE(told.empty());
  CUdeviceptr address = 0;
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(table().cuMemAlloc_v2(&address, 65 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  }
  ASSERT_EQ(told.size(), 1u) << "one line for a session";
  EXPECT_EQ(
      told[0],
      "the program asked for 66 MiB of device 5, but user ada may use 64 MiB of it and 24 MiB "
      "are left: the call gets CUDA_ERROR_OUT_OF_MEMORY. Free memory, end other sessions of the "
      "program's user, or raise device_memory in the server's configuration file");
  EXPECT_EQ(table().cuMemFree_v2(first), CUDA_SUCCESS);
}

TEST_F(MeteringTest, TheFirstAllocationWithoutRoomIsReported) {
  std::vector<std::string> told;
  metered_->memory.tell = [&](const std::string& text) { told.push_back(text); };
  metered_->memory.others = {[](uint32_t, uint64_t, uint64_t) { return false; }, [] {}, {}};
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(metered_->memory.with_room(0, 40 * kMiB, [] { return CUDA_ERROR_OUT_OF_MEMORY; }),
              CUDA_ERROR_OUT_OF_MEMORY);
  }
  EXPECT_THAT(
      told,
      testing::ElementsAre(testing::HasSubstr(
          "asked for 40 MiB of device 5, which has no room: no other session can be parked")));
}

TEST_F(MeteringTest, PitchedAndManagedMemoryCount) {
  CUdeviceptr pitched = 0, managed = 0;
  size_t pitch = 0;
  EXPECT_EQ(table().cuMemAllocPitch_v2(&pitched, &pitch, kMiB, 65, 4), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(table().cuMemAllocPitch_v2(&pitched, &pitch, SIZE_MAX / 2, 4, 4), CUDA_SUCCESS);
  ASSERT_EQ(table().cuMemAllocPitch_v2(&pitched, &pitch, kMiB, 40, 4), CUDA_SUCCESS);
  EXPECT_GE(booked(), pitch * 40);
  EXPECT_EQ(table().cuMemAllocManaged(&managed, 40 * kMiB, CU_MEM_ATTACH_GLOBAL),
            CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(table().cuMemAllocManaged(&managed, 24 * kMiB, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(booked(), kLimit);
  EXPECT_EQ(table().cuMemFree_v2(pitched), CUDA_SUCCESS);
  EXPECT_EQ(table().cuMemFree_v2(managed), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
}

TEST_F(MeteringTest, WhatTheDriverRefusesIsNotBooked) {
  CUdeviceptr address = 0;
  EXPECT_EQ(table().cuMemAlloc_v2(&address, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(table().cuMemAllocManaged(&address, kMiB, 77), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(booked(), 0u);
  address = allocate(kMiB);
  EXPECT_EQ(table().cuMemFree_v2(address + 256), CUDA_ERROR_INVALID_VALUE);
  EXPECT_GT(booked(), 0u);
  EXPECT_EQ(table().cuMemFree_v2(address), CUDA_SUCCESS);
  EXPECT_NE(table().cuMemFree_v2(address), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
}

TEST_F(MeteringTest, TheProgramSeesTheQuota) {
  size_t free = 0, total = 0;
  const CUdeviceptr address = allocate(16 * kMiB);
  ASSERT_EQ(table().cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(total, kLimit);
  EXPECT_EQ(free, 48 * kMiB);
  // Another session of the user.
  ASSERT_TRUE(quota_of(1)->take(kOrdinal, 40 * kMiB));
  ASSERT_EQ(table().cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(free, 8 * kMiB);
  CUdeviceptr second = 0;
  EXPECT_EQ(table().cuMemAlloc_v2(&second, 16 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(table().cuMemFree_v2(address), CUDA_SUCCESS);
}

TEST_F(MeteringTest, TheEndOfAContextGivesItsMemoryBack) {
  CUcontext context = nullptr;
  CUctxCreateParams parameters{};
  ASSERT_EQ(table().cuCtxCreate_v4(&context, &parameters, 0, 0), CUDA_SUCCESS);
  allocate(48 * kMiB);
  ASSERT_EQ(table().cuCtxDestroy_v2(context), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
  ASSERT_EQ(plain().cuCtxSetCurrent(context_), CUDA_SUCCESS);
  EXPECT_EQ(table().cuMemFree_v2(allocate(48 * kMiB)), CUDA_SUCCESS);
}

TEST_F(MeteringTest, PoolsEndAtTheLimit) {
  CUdeviceptr first = 0, second = 0;
  ASSERT_EQ(table().cuMemAllocAsync(&first, 40 * kMiB, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 40 * kMiB);
  EXPECT_EQ(table().cuMemAllocAsync(&second, 128 * kMiB, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(table().cuMemAllocAsync(&second, 40 * kMiB, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(table().cuMemAlloc_v2(&second, 40 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(table().cuMemFreeAsync(first, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(table().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
  EXPECT_EQ(table().cuMemFree_v2(allocate(64 * kMiB)), CUDA_SUCCESS);
}

// Sets the release threshold of the pool: the bytes that it keeps for reuse.
void keep(const api::DriverTable& driver, CUmemoryPool pool, cuuint64_t bytes) {
  ASSERT_EQ(driver.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes),
            CUDA_SUCCESS);
}

TEST_F(MeteringTest, WhatAPoolKeepsCountsUntilItIsNeeded) {
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(table().cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
  keep(table(), pool, UINT64_MAX);
  CUdeviceptr address = 0;
  ASSERT_EQ(table().cuMemAllocAsync(&address, 40 * kMiB, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(table().cuMemFreeAsync(address, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(table().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 40 * kMiB);
  // The pool reuses the memory that it keeps, so the booked amount stays.
  ASSERT_EQ(table().cuMemAllocAsync(&address, 40 * kMiB, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 40 * kMiB);
  ASSERT_EQ(table().cuMemFreeAsync(address, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(table().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  bool may_trim = false;
  metered_->before_trimming = [&] { return may_trim; };
  EXPECT_EQ(table().cuMemAlloc_v2(&address, 48 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  may_trim = true;
  EXPECT_EQ(table().cuMemFree_v2(allocate(48 * kMiB)), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
  keep(table(), pool, 0);
}

TEST_F(MeteringTest, ADestroyedPoolCountsUntilItsMemoryIsFree) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(table().cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
  CUdeviceptr address = 0, second = 0;
  EXPECT_EQ(table().cuMemAllocFromPoolAsync(&address, 80 * kMiB, pool, nullptr),
            CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(table().cuMemAllocFromPoolAsync(&address, 40 * kMiB, pool, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(table().cuMemPoolDestroy(pool), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 40 * kMiB);
  EXPECT_EQ(table().cuMemAlloc_v2(&second, 40 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(table().cuMemFreeAsync(address, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(table().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
  size_t bytes = 0;
  EXPECT_NE(plain().cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes),
            CUDA_SUCCESS);
}

TEST_F(MeteringTest, ADefaultPoolCannotBeDestroyed) {
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(table().cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
  EXPECT_EQ(table().cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
}

// A stream whose work waits for open().
class GatedStream {
 public:
  explicit GatedStream(const api::DriverTable& driver) : driver_(driver) {
    EXPECT_EQ(driver.cuMemHostAlloc(&word_, 4096, 0), CUDA_SUCCESS);
    std::atomic_ref(*static_cast<uint32_t*>(word_)) = 0;
    EXPECT_EQ(driver.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    EXPECT_EQ(driver.cuStreamWaitValue32_v2(stream_, reinterpret_cast<CUdeviceptr>(word_), 1,
                                            CU_STREAM_WAIT_VALUE_EQ),
              CUDA_SUCCESS);
  }
  ~GatedStream() {
    open();
    if (stream_) driver_.cuStreamDestroy_v2(stream_);
    driver_.cuMemFreeHost(word_);
  }
  void open() { std::atomic_ref(*static_cast<uint32_t*>(word_)) = 1; }
  CUstream get() const { return stream_; }
  CUstream release() { return std::exchange(stream_, nullptr); }

 private:
  const api::DriverTable& driver_;
  void* word_ = nullptr;
  CUstream stream_ = nullptr;
};

TEST_F(MeteringTest, MemoryThatAStreamFreesLaterCountsUntilThen) {
  GatedStream stream(plain());
  const CUdeviceptr address = allocate(40 * kMiB);
  ASSERT_EQ(table().cuMemFreeAsync(address, stream.get()), CUDA_SUCCESS);
  CUdeviceptr second = 0;
  EXPECT_EQ(table().cuMemAlloc_v2(&second, 40 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  stream.open();
  ASSERT_EQ(table().cuStreamSynchronize(stream.get()), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
  EXPECT_EQ(table().cuMemFree_v2(allocate(40 * kMiB)), CUDA_SUCCESS);
}

// The client counts one place of the stream's queue for each free. If the worker used more places,
// its thread would block in a full queue.
TEST_F(MeteringTest, FreesInAStreamTakeFewPlacesOfItsQueue) {
  static size_t records = 0;
  api::DriverTable driver = plain();
  driver.cuEventRecord = [](CUevent event, CUstream stream) {
    ++records;
    return plain().cuEventRecord(event, stream);
  };
  const Meters other(driver, {{0, context_, kOrdinal}}, quota_of(1), {}, &done_);
  const api::DriverTable& table = other.table();
  GatedStream stream(plain());
  std::vector<CUdeviceptr> addresses(100);
  for (CUdeviceptr& address : addresses) {
    ASSERT_EQ(table.cuMemAlloc_v2(&address, 512), CUDA_SUCCESS);
  }
  for (const CUdeviceptr address : addresses) {
    ASSERT_EQ(table.cuMemFreeAsync(address, stream.get()), CUDA_SUCCESS);
  }
  EXPECT_EQ(records, StreamFrees::kMostEvents);
  EXPECT_EQ(booked(), addresses.size() * 512);
  stream.open();
  ASSERT_EQ(table.cuStreamSynchronize(stream.get()), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
}

TEST_F(MeteringTest, FreesInAStreamThatIsDestroyedCountUntilTheyAreReached) {
  GatedStream stream(plain());
  std::vector<CUdeviceptr> addresses(2 * StreamFrees::kMostEvents);
  for (CUdeviceptr& address : addresses) address = allocate(kMiB / 2);
  for (const CUdeviceptr address : addresses) {
    ASSERT_EQ(table().cuMemFreeAsync(address, stream.get()), CUDA_SUCCESS);
  }
  ASSERT_EQ(table().cuStreamDestroy_v2(stream.release()), CUDA_SUCCESS);
  size_t free = 0, total = 0;
  ASSERT_EQ(table().cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(booked(), addresses.size() * kMiB / 2);
  stream.open();
  ASSERT_EQ(plain().cuCtxSynchronize(), CUDA_SUCCESS);
  ASSERT_EQ(table().cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
}

// The event after a free belongs to the context of its stream, which may not be the current
// context.
TEST_F(MeteringTest, AStreamOfAnotherContextFreesMemory) {
  CUcontext second = nullptr;
  ASSERT_EQ(plain().cuCtxCreate_v2(&second, 0, 0), CUDA_SUCCESS);
  CUstream stream = nullptr;
  ASSERT_EQ(plain().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(plain().cuCtxSetCurrent(context_), CUDA_SUCCESS);
  ASSERT_EQ(table().cuMemFreeAsync(allocate(kMiB), stream), CUDA_SUCCESS);
  ASSERT_EQ(table().cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
  ASSERT_EQ(plain().cuCtxDestroy_v2(second), CUDA_SUCCESS);
  ASSERT_EQ(plain().cuCtxSetCurrent(context_), CUDA_SUCCESS);
}

TEST_F(MeteringTest, HostMemoryEndsAtTheLimit) {
  EXPECT_TRUE(metered_->memory.take(MemoryMeter::kHost, 40 * kMiB));
  EXPECT_FALSE(metered_->memory.take(MemoryMeter::kHost, 40 * kMiB));
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}};
  CUmemGenericAllocationHandle memory = 0;
  EXPECT_EQ(table().cuMemCreate(&memory, 40 * kMiB, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
  metered_->memory.give(MemoryMeter::kHost, 40 * kMiB);
  ASSERT_EQ(table().cuMemCreate(&memory, 40 * kMiB, &properties, 0), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
  EXPECT_FALSE(metered_->memory.take(MemoryMeter::kHost, 40 * kMiB));
  EXPECT_EQ(table().cuMemRelease(memory), CUDA_SUCCESS);
  EXPECT_EQ(ledger_.sum(Ledger::kHostMemory), 0u);
}

// Room is kept free for a session that wakes. An allocation that would use this room waits.
TEST_F(MeteringTest, AnAllocationLeavesTheRoomThatIsKeptFree) {
  size_t free = 0, total = 0;
  ASSERT_EQ(plain().cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
  std::atomic<uint64_t> kept = free - 16 * kMiB;
  std::atomic<bool> has_asked = false;
  metered_->memory.kept_free = [&](uint32_t ordinal) {
    EXPECT_EQ(ordinal, kOrdinal);
    if (kept != 0) has_asked = true;
    return kept.load();
  };
  const CUdeviceptr small = allocate(8 * kMiB);
  has_asked = false;
  std::atomic<bool> is_over = false;
  CUdeviceptr large = 0, in_order = 0;
  std::thread program([&] {
    ASSERT_EQ(plain().cuCtxSetCurrent(context_), CUDA_SUCCESS);
    large = allocate(16 * kMiB);
    EXPECT_EQ(kept, 0u);
    is_over = true;
  });
  while (!has_asked) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(is_over);
  kept = 0;
  program.join();
  EXPECT_EQ(table().cuMemAllocAsync(&in_order, kMiB, nullptr), CUDA_SUCCESS);
  for (const CUdeviceptr address : {small, large, in_order}) {
    EXPECT_EQ(table().cuMemFree_v2(address), CUDA_SUCCESS);
  }
}

TEST_F(MeteringTest, PrioritiesEndAtTheLimit) {
  int least = 0, greatest = 0, priority = 0;
  ASSERT_EQ(plain().cuCtxGetStreamPriorityRange(&least, &greatest), CUDA_SUCCESS);
  ASSERT_LT(greatest, least - 1);
  CUstream stream = nullptr;
  ASSERT_EQ(table().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, greatest),
            CUDA_SUCCESS);
  ASSERT_EQ(plain().cuStreamGetPriority(stream, &priority), CUDA_SUCCESS);
  EXPECT_EQ(priority, least - 1);
  CUstreamAttrValue value{};
  value.priority = greatest;
  if (table().cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value) == CUDA_SUCCESS) {
    ASSERT_EQ(plain().cuStreamGetPriority(stream, &priority), CUDA_SUCCESS);
    EXPECT_EQ(priority, least - 1);
  }
  EXPECT_EQ(plain().cuStreamDestroy_v2(stream), CUDA_SUCCESS);
}

TEST_F(MeteringTest, ArraysEndAtTheLimit) {
  CUDA_ARRAY_DESCRIPTOR flat{1024, 5120, CU_AD_FORMAT_FLOAT, 2};  // 40 MiB
  CUarray first = nullptr, second = nullptr;
  ASSERT_EQ(table().cuArrayCreate_v2(&first, &flat), CUDA_SUCCESS);
  EXPECT_EQ(table().cuArrayCreate_v2(&second, &flat), CUDA_ERROR_OUT_OF_MEMORY);
  CUDA_ARRAY3D_DESCRIPTOR layered{
      1024, 1024, 40, CU_AD_FORMAT_UNSIGNED_INT8, 1, CUDA_ARRAY3D_LAYERED};
  EXPECT_EQ(table().cuArray3DCreate_v2(&second, &layered), CUDA_ERROR_OUT_OF_MEMORY);
  layered.Depth = 24;
  ASSERT_EQ(table().cuArray3DCreate_v2(&second, &layered), CUDA_SUCCESS);
  EXPECT_EQ(booked(), kLimit);
  EXPECT_EQ(table().cuArrayDestroy(first), CUDA_SUCCESS);
  EXPECT_EQ(table().cuArrayDestroy(second), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
}

// Uses a driver that opens the handle: real drivers do not let a process open its own exports.
TEST_F(MeteringTest, MemoryOfOtherProcessesCountsOnceWhileItIsOpen) {
  static CUdeviceptr foreign = 0;
  static int opened = 0;
  foreign = allocate(40 * kMiB);
  const uint64_t before = booked();
  api::DriverTable driver = plain();
  driver.cuIpcOpenMemHandle_v2 = [](CUdeviceptr* address, CUipcMemHandle, unsigned) {
    ++opened;
    *address = foreign;
    return CUDA_SUCCESS;
  };
  driver.cuIpcCloseMemHandle = [](CUdeviceptr) {
    --opened;
    return CUDA_SUCCESS;
  };
  const std::vector<SessionDevice> devices{{0, context_, kOrdinal}};
  const Meters other(driver, devices, quota_of(1), {}, &done_);
  const api::DriverTable& table = other.table();
  CUdeviceptr address = 0;
  EXPECT_EQ(table.cuIpcOpenMemHandle_v2(&address, {}, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(opened, 0);
  plain().cuMemFree_v2(foreign);
  plain().cuMemAlloc_v2(&foreign, 20 * kMiB);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(table.cuIpcOpenMemHandle_v2(&address, {}, 0), CUDA_SUCCESS);
    EXPECT_EQ(booked(), before + 20 * kMiB);
  }
  EXPECT_EQ(table.cuIpcCloseMemHandle(address), CUDA_SUCCESS);
  EXPECT_EQ(booked(), before + 20 * kMiB);
  EXPECT_EQ(table.cuIpcCloseMemHandle(address), CUDA_SUCCESS);
  EXPECT_EQ(booked(), before);
  plain().cuMemFree_v2(foreign);
}

TEST_F(MeteringTest, AGraphRunsOnlyIfItsMemoryFits) {
  CUgraph graph = nullptr;
  CUgraphNode allocation = nullptr, end = nullptr;
  CUgraphExec executable = nullptr;
  CUstream stream = nullptr;
  ASSERT_EQ(plain().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  CUdeviceptr memory = allocate(40 * kMiB);
  ASSERT_EQ(table().cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  CUDA_MEM_ALLOC_NODE_PARAMS parameters{};
  parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  parameters.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  parameters.bytesize = 40 * kMiB;
  ASSERT_EQ(table().cuGraphAddMemAllocNode(&allocation, graph, nullptr, 0, &parameters),
            CUDA_SUCCESS);
  ASSERT_EQ(table().cuGraphAddMemFreeNode(&end, graph, &allocation, 1, parameters.dptr),
            CUDA_SUCCESS);
  // softgpu reserves the memory with the node, other drivers with the executable.
  EXPECT_EQ(table().cuGraphInstantiateWithFlags(&executable, graph, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(table().cuMemFree_v2(memory), CUDA_SUCCESS);
  ASSERT_EQ(table().cuGraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(table().cuGraphLaunch(executable, stream), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 40 * kMiB);
  EXPECT_EQ(table().cuMemAlloc_v2(&memory, 40 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(table().cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(table().cuGraphExecDestroy(executable), CUDA_SUCCESS);
  EXPECT_EQ(table().cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
  plain().cuStreamDestroy_v2(stream);
}

// A driver that reserves the memory of graphs when they are uploaded.
TEST_F(MeteringTest, AGraphIsUploadedBeforeItsLaunchToSeeWhatItTakes) {
  static uint64_t reserved = 0;
  static int launches = 0;
  api::DriverTable driver = plain();
  driver.cuGraphUpload = [](CUgraphExec, CUstream) {
    reserved = 40 * kMiB;
    return CUDA_SUCCESS;
  };
  driver.cuGraphLaunch = [](CUgraphExec, CUstream) {
    ++launches;
    return CUDA_SUCCESS;
  };
  driver.cuDeviceGraphMemTrim = [](CUdevice) {
    reserved = 0;
    return CUDA_SUCCESS;
  };
  driver.cuDeviceGetGraphMemAttribute = [](CUdevice, CUgraphMem_attribute, void* value) {
    *static_cast<cuuint64_t*>(value) = reserved;
    return CUDA_SUCCESS;
  };
  const Meters other(driver, {{0, context_, kOrdinal}}, quota_of(1), {}, &done_);
  const api::DriverTable& table = other.table();
  const auto executable = reinterpret_cast<CUgraphExec>(&launches);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(table.cuGraphLaunch(executable, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 40 * kMiB);
  CUdeviceptr memory = 0;
  // The allocation releases the memory of idle graphs.
  ASSERT_EQ(table.cuMemAlloc_v2(&memory, 40 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 40 * kMiB);
  // Further launches fail too, although the driver now holds the memory.
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(table.cuGraphLaunch(executable, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  }
  EXPECT_EQ(launches, 2);
  EXPECT_EQ(table.cuMemFree_v2(memory), CUDA_SUCCESS);
  EXPECT_EQ(table.cuGraphLaunch(executable, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 40 * kMiB);
  EXPECT_EQ(table.cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
}

// An upload takes a place of the stream's queue that the client does not count. So uploads must be
// rare.
TEST_F(MeteringTest, OnlyAGraphWithAllocationsIsUploadedAndOnlyOnce) {
  static int uploads = 0;
  api::DriverTable driver = plain();
  driver.cuGraphUpload = [](CUgraphExec executable, CUstream stream) {
    ++uploads;
    return plain().cuGraphUpload(executable, stream);
  };
  const Meters other(driver, {{0, context_, kOrdinal}}, quota_of(1), {}, &done_);
  const api::DriverTable& table = other.table();
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUstream stream = nullptr;
  ASSERT_EQ(plain().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(table.cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(table.cuGraphAddEmptyNode(&node, graph, nullptr, 0), CUDA_SUCCESS);
  for (const int expected : {0, 1}) {
    CUgraphExec executable = nullptr;
    CUgraphExecUpdateResultInfo info{};
    ASSERT_EQ(table.cuGraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
    ASSERT_EQ(table.cuGraphLaunch(executable, stream), CUDA_SUCCESS);
    EXPECT_EQ(table.cuGraphExecUpdate_v2(executable, graph, &info), CUDA_SUCCESS);
    ASSERT_EQ(table.cuGraphLaunch(executable, stream), CUDA_SUCCESS);
    EXPECT_EQ(uploads, expected);
    ASSERT_EQ(plain().cuStreamSynchronize(stream), CUDA_SUCCESS);
    ASSERT_EQ(table.cuGraphExecDestroy(executable), CUDA_SUCCESS);
    if (expected) break;
    CUDA_MEM_ALLOC_NODE_PARAMS parameters{};
    parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    parameters.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    parameters.bytesize = kMiB;
    ASSERT_EQ(table.cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &parameters), CUDA_SUCCESS);
    ASSERT_EQ(table.cuGraphAddMemFreeNode(&node, graph, &node, 1, parameters.dptr), CUDA_SUCCESS);
  }
  EXPECT_EQ(table.cuGraphDestroy(graph), CUDA_SUCCESS);
  plain().cuStreamDestroy_v2(stream);
}

TEST_F(MeteringTest, TheHeapOfKernelsCounts) {
  CUcontext context = nullptr;
  CUctxCreateParams parameters{};
  ASSERT_EQ(table().cuCtxCreate_v4(&context, &parameters, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(table().cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 80 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(table().cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 40 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 40 * kMiB);
  ASSERT_EQ(table().cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 48 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(table().cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 8 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 56 * kMiB);
  ASSERT_EQ(table().cuCtxDestroy_v2(context), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
}

TEST_F(MeteringTest, ContextsCount) {
  static size_t taken = 0;
  api::DriverTable driver = plain();
  driver.cuCtxCreate_v2 = [](CUcontext* context, unsigned flags, CUdevice device) {
    taken += 40 * kMiB;
    return plain().cuCtxCreate_v2(context, flags, device);
  };
  driver.cuCtxDestroy_v2 = [](CUcontext context) {
    taken -= 40 * kMiB;
    return plain().cuCtxDestroy_v2(context);
  };
  driver.cuMemGetInfo_v2 = [](size_t* free, size_t* total) {
    *total = 16 * kLimit;
    *free = *total - taken;
    return CUDA_SUCCESS;
  };
  const Meters other(driver, {{0, context_, kOrdinal}}, quota_of(1), {}, &done_);
  const api::DriverTable& table = other.table();
  CUcontext first = nullptr, second = nullptr;
  ASSERT_EQ(table.cuCtxCreate_v2(&first, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 40 * kMiB);
  EXPECT_EQ(table.cuCtxCreate_v2(&second, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(table.cuCtxDestroy_v2(first), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
  EXPECT_EQ(taken, 0u);
  plain().cuCtxSetCurrent(context_);
}

TEST_F(MeteringTest, VariablesOfCodeCount) {
  constexpr char kTooLarge[] =
      ".version 7.0\n.target sm_70\n.address_size 64\n.global .b8 big[83886080];\n"
      ".visible .entry k() { ret; }\n";
  constexpr char kFits[] =
      ".version 7.0\n.target sm_70\n.address_size 64\n.global .b8 big[41943040];\n"
      ".visible .entry k() { ret; }\n";
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  EXPECT_EQ(table().cuModuleLoadData(&module, kTooLarge), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(table().cuModuleLoadDataEx(&module, kFits, 0, nullptr, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 40 * kMiB);
  const auto load = [&] {
    return table().cuLibraryLoadData(&library, kFits, nullptr, nullptr, 0, nullptr, nullptr, 0);
  };
  EXPECT_EQ(load(), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(table().cuModuleUnload(module), CUDA_SUCCESS);
  ASSERT_EQ(load(), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 40 * kMiB);
  EXPECT_EQ(table().cuLibraryUnload(library), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
}

TEST_F(MeteringTest, VariablesOfALibraryCountInEachContext) {
  constexpr char kCode[] =
      ".version 7.0\n.target sm_70\n.address_size 64\n.global .b8 big[20971520];\n"
      ".visible .entry k() { ret; }\n";
  const auto load = [&](CUlibrary* library) {
    return table().cuLibraryLoadData(library, kCode, nullptr, nullptr, 0, nullptr, nullptr, 0);
  };
  CUlibrary library = nullptr, refused = nullptr;
  CUcontext second = nullptr, third = nullptr, fourth = nullptr;
  ASSERT_EQ(load(&library), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 20 * kMiB);
  ASSERT_EQ(table().cuCtxCreate_v2(&second, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 40 * kMiB);
  EXPECT_EQ(load(&refused), CUDA_ERROR_OUT_OF_MEMORY) << "two contexts would have it";
  EXPECT_EQ(booked(), 40 * kMiB);
  ASSERT_EQ(table().cuCtxCreate_v2(&third, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(table().cuCtxCreate_v2(&fourth, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(booked(), 60 * kMiB);
  ASSERT_EQ(table().cuCtxDestroy_v2(third), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 40 * kMiB);
  ASSERT_EQ(table().cuLibraryUnload(library), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
  ASSERT_EQ(table().cuCtxDestroy_v2(second), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
  plain().cuCtxSetCurrent(context_);
}

TEST_F(MeteringTest, APoolOfAnotherDeviceCountsThere) {
  CUcontext second = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr address = 0;
  ASSERT_EQ(plain().cuDevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
  ASSERT_EQ(plain().cuCtxSetCurrent(second), CUDA_SUCCESS);
  ASSERT_EQ(plain().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(plain().cuCtxSetCurrent(context_), CUDA_SUCCESS);
  const Meters other(plain(), {{0, context_, 0}, {1, second, 1}}, quota_of(1), {}, &done_);
  if (other.table().cuMemAllocAsync(&address, 40 * kMiB, stream) == CUDA_SUCCESS) {
    EXPECT_EQ(ledger_.sum(0), 0u);
    EXPECT_EQ(ledger_.sum(1), 40 * kMiB);
    EXPECT_EQ(other.table().cuMemFreeAsync(address, stream), CUDA_SUCCESS);
    EXPECT_EQ(other.table().cuStreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(ledger_.sum(1), 0u);
  }
  plain().cuStreamDestroy_v2(stream);
  plain().cuDevicePrimaryCtxRelease_v2(1);
}

}  // namespace
}  // namespace rcuda::server
