// Memory that a worker moves to the host and back. It behaves like memory of cuMemAlloc and
// cuMemCreate, and keeps its addresses and contents.
#include "server/executor/movable/movable_memory.h"

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "server/executor/host_memory/opened_memory.h"
#include "tests/support/session_harness.h"

namespace rcuda::server {
namespace {

constexpr uint64_t kMiB = 1u << 20;

class MovableMemoryTest : public ::testing::Test {
 protected:
  MovableMemoryTest() {
    plain().cuDevicePrimaryCtxRetain(&context_, 0);
    plain().cuCtxSetCurrent(context_);
    movable_.emplace(plain(), names_, std::vector<SessionDevice>{{0, context_, 0}}, true);
    free_before_ = free_bytes();
  }
  ~MovableMemoryTest() override {
    movable_.reset();
    plain().cuDevicePrimaryCtxRelease_v2(0);
  }

  static const api::DriverTable& plain() { return test::TestDriver::get().table; }
  const api::DriverTable& table() { return movable_->table(); }
  static uint64_t free_bytes() {
    size_t free = 0, total = 0;
    EXPECT_EQ(plain().cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
    return free;
  }
  uint64_t used() const { return free_before_ - free_bytes(); }
  CUdeviceptr allocate(uint64_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(table().cuMemAlloc_v2(&address, bytes), CUDA_SUCCESS);
    return address;
  }
  void fill(CUdeviceptr address, uint64_t bytes, unsigned value) {
    EXPECT_EQ(table().cuMemsetD32_v2(address, value, bytes / 4), CUDA_SUCCESS);
    EXPECT_EQ(table().cuCtxSynchronize(), CUDA_SUCCESS);
  }
  std::optional<unsigned> word(CUdeviceptr address) {
    unsigned value = 0;
    if (table().cuMemcpyDtoH_v2(&value, address, sizeof value) != CUDA_SUCCESS) return {};
    return value;
  }
  CUmemGenericAllocationHandle create(uint64_t bytes, CUmemAllocationHandleType type = {}) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    properties.requestedHandleTypes = type;
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(table().cuMemCreate(&handle, bytes, &properties, 0), CUDA_SUCCESS);
    return handle;
  }
  CUdeviceptr reserve(uint64_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(table().cuMemAddressReserve(&address, bytes, 0, 0, 0), CUDA_SUCCESS);
    return address;
  }
  void map(CUdeviceptr address, uint64_t bytes, CUmemGenericAllocationHandle handle,
           CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, flags};
    EXPECT_EQ(table().cuMemMap(address, bytes, 0, handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(table().cuMemSetAccess(address, bytes, &access, 1), CUDA_SUCCESS);
  }
  void unmap(CUdeviceptr address, uint64_t bytes) {
    EXPECT_EQ(table().cuMemUnmap(address, bytes), CUDA_SUCCESS);
    EXPECT_EQ(table().cuMemAddressFree(address, bytes), CUDA_SUCCESS);
  }
  void park_and_wake() {
    ASSERT_TRUE(movable_->park().ok());
    const Result<bool> woken = movable_->wake(0);
    ASSERT_TRUE(woken.ok() && *woken);
  }

  ExportedNames names_;
  CUcontext context_ = nullptr;
  std::optional<MovableMemory> movable_;
  uint64_t free_before_ = 0;
};

TEST_F(MovableMemoryTest, AllocationsKeepTheirAddressesAndContents) {
  const CUdeviceptr first = allocate(5 * kMiB), second = allocate(300 * kMiB);
  fill(first, 4 * kMiB, 11);
  fill(second, 300 * kMiB, 22);
  EXPECT_EQ(used(), 306 * kMiB);
  EXPECT_EQ(movable_->bytes()[0], 306 * kMiB);
  ASSERT_TRUE(movable_->park().ok());
  EXPECT_EQ(used(), 0u);
  EXPECT_FALSE(word(first));  // not mapped
  EXPECT_GE(movable_->host_bytes(), 306 * kMiB);
  const Result<bool> woken = movable_->wake(0);
  ASSERT_TRUE(woken.ok() && *woken);
  EXPECT_EQ(movable_->host_bytes(), 0u);
  EXPECT_EQ(used(), 306 * kMiB);
  EXPECT_EQ(word(first), 11u);
  EXPECT_EQ(word(second), 22u);
  EXPECT_EQ(word(second + 300 * kMiB - 4), 22u);
  EXPECT_EQ(table().cuMemFree_v2(first), CUDA_SUCCESS);
  EXPECT_EQ(table().cuMemFree_v2(second), CUDA_SUCCESS);
  EXPECT_EQ(used(), 0u);
}

TEST_F(MovableMemoryTest, SmallAllocationsStay) {
  const CUdeviceptr small = allocate(kMiB);
  EXPECT_EQ(movable_->bytes()[0], 0u);
  EXPECT_EQ(table().cuMemFree_v2(small), CUDA_SUCCESS);
}

TEST_F(MovableMemoryTest, HostMemoryIsKeptForTheNextTime) {
  const CUdeviceptr address = allocate(600 * kMiB);
  for (unsigned value : {1u, 2u}) {
    fill(address, 600 * kMiB, value);
    ASSERT_TRUE(movable_->park().ok());
    const Result<bool> woken = movable_->wake(512 * kMiB);
    ASSERT_TRUE(woken.ok() && *woken);
    EXPECT_EQ(movable_->host_bytes(), 512 * kMiB);
    EXPECT_EQ(word(address), value);
    EXPECT_EQ(word(address + 600 * kMiB - 4), value);
  }
  EXPECT_EQ(table().cuMemFree_v2(address), CUDA_SUCCESS);
}

TEST_F(MovableMemoryTest, WithoutRoomItStaysInTheHostsMemory) {
  const CUdeviceptr address = allocate(64 * kMiB);
  fill(address, 64 * kMiB, 33);
  ASSERT_TRUE(movable_->park().ok());
  CUdeviceptr other = 0;
  ASSERT_EQ(plain().cuMemAlloc_v2(&other, free_bytes() - 32 * kMiB), CUDA_SUCCESS);
  for (int i = 0; i < 2; ++i) {
    const Result<bool> woken = movable_->wake(0);
    ASSERT_TRUE(woken.ok());
    EXPECT_FALSE(*woken);
  }
  ASSERT_EQ(plain().cuMemFree_v2(other), CUDA_SUCCESS);
  const Result<bool> woken = movable_->wake(0);
  ASSERT_TRUE(woken.ok() && *woken);
  EXPECT_EQ(word(address), 33u);
  EXPECT_EQ(table().cuMemFree_v2(address), CUDA_SUCCESS);
}

TEST_F(MovableMemoryTest, AProgramsMemoryKeepsItsMappingsAndHandles) {
  const CUmemGenericAllocationHandle twice = create(4 * kMiB), unmapped = create(2 * kMiB),
                                     released = create(2 * kMiB);
  const CUdeviceptr base = reserve(10 * kMiB);
  map(base, 4 * kMiB, twice);
  fill(base, 4 * kMiB, 44);
  map(base + 4 * kMiB, 4 * kMiB, twice, CU_MEM_ACCESS_FLAGS_PROT_READ);
  map(base + 8 * kMiB, 2 * kMiB, released);
  fill(base + 8 * kMiB, 2 * kMiB, 55);
  EXPECT_EQ(table().cuMemRelease(released), CUDA_SUCCESS);
  const CUdeviceptr scratch = reserve(2 * kMiB);
  map(scratch, 2 * kMiB, unmapped);
  fill(scratch, 2 * kMiB, 66);
  EXPECT_EQ(table().cuMemUnmap(scratch, 2 * kMiB), CUDA_SUCCESS);

  ASSERT_TRUE(movable_->park().ok());
  EXPECT_EQ(used(), 0u);
  const Result<bool> woken = movable_->wake(0);
  ASSERT_TRUE(woken.ok() && *woken);

  EXPECT_EQ(word(base), 44u);
  EXPECT_EQ(word(base + 4 * kMiB), 44u);
  fill(base, 4 * kMiB, 45);
  EXPECT_EQ(word(base + 4 * kMiB), 45u);  // both places show the same memory
  const CUmemLocation device{CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  unsigned long long access = 0;
  EXPECT_EQ(table().cuMemGetAccess(&access, &device, base + 4 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(access, CU_MEM_ACCESS_FLAGS_PROT_READ);
  EXPECT_EQ(word(base + 8 * kMiB), 55u);
  map(scratch, 2 * kMiB, unmapped);
  EXPECT_EQ(word(scratch), 66u);
  CUmemGenericAllocationHandle again = 0;
  EXPECT_EQ(table().cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(base)),
            CUDA_SUCCESS);
  EXPECT_EQ(again, twice);
  CUmemAllocationProp properties{};
  EXPECT_EQ(table().cuMemGetAllocationPropertiesFromHandle(&properties, twice), CUDA_SUCCESS);

  unmap(scratch, 2 * kMiB);
  unmap(base, 10 * kMiB);
  for (const auto handle : {twice, twice, unmapped}) {
    EXPECT_EQ(table().cuMemRelease(handle), CUDA_SUCCESS);
  }
  EXPECT_EQ(table().cuMemRelease(twice), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(used(), 0u);
}

TEST_F(MovableMemoryTest, ExportedMemoryStays) {
  const CUmemGenericAllocationHandle handle =
      create(2 * kMiB, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const CUdeviceptr address = allocate(2 * kMiB);
  EXPECT_EQ(movable_->bytes()[0], 4 * kMiB);
  int file = -1;
  ASSERT_EQ(table().cuMemExportToShareableHandle(&file, handle,
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  ::close(file);
  EXPECT_EQ(movable_->bytes()[0], 2 * kMiB);
  const auto name = movable_->export_allocation(address + 100, {});
  ASSERT_TRUE(name.ok());
  EXPECT_TRUE(movable_->has_exported(*name));
  EXPECT_EQ(movable_->bytes()[0], 0u);
  const auto again = movable_->export_allocation(address, {});
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(std::memcmp(&*name, &*again, sizeof *name), 0);
  ExportOrigin origin;
  EXPECT_TRUE(names_.find_descriptor(*name, &origin).ok());
  EXPECT_EQ(origin.bytes, 2 * kMiB);
  park_and_wake();
  // The name, which keeps the memory, ends with it.
  EXPECT_EQ(table().cuMemFree_v2(address), CUDA_SUCCESS);
  EXPECT_EQ(table().cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(used(), 0u);
}

TEST_F(MovableMemoryTest, AFreeInStreamOrderEndsTheMemoryOnce) {
  const CUdeviceptr address = allocate(8 * kMiB);
  ASSERT_EQ(table().cuMemFreeAsync(address, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(table().cuMemFreeAsync(address, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(table().cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(table().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(movable_->bytes()[0], 0u);
  EXPECT_EQ(used(), 0u);
}

TEST_F(MovableMemoryTest, MemoryFreedInStreamOrderIsRoomForOtherMemory) {
  const auto free_half = [&] {
    const CUdeviceptr half = allocate(free_before_ / 2);
    ASSERT_EQ(table().cuMemFreeAsync(half, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(table().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  };
  free_half();
  size_t free = 0, total = 0;
  EXPECT_EQ(table().cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(free, free_before_);
  free_half();
  EXPECT_EQ(table().cuMemRelease(create(free_before_ / (8 * kMiB) * (6 * kMiB))), CUDA_SUCCESS);
  free_half();
  CUdeviceptr pitched = 0;
  size_t pitch = 0;
  EXPECT_EQ(table().cuMemAllocPitch_v2(&pitched, &pitch, kMiB, free_before_ / kMiB / 4 * 3, 4),
            CUDA_SUCCESS);
  EXPECT_EQ(table().cuMemFree_v2(pitched), CUDA_SUCCESS);
}

TEST_F(MovableMemoryTest, ACaptureForbidsAFreeAsTheDriverDoes) {
  CUstream stream = nullptr;
  ASSERT_EQ(table().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  const CUdeviceptr address = allocate(4 * kMiB);
  for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    const bool is_allowed = mode == CU_STREAM_CAPTURE_MODE_RELAXED;
    CUgraph graph = nullptr;
    ASSERT_EQ(table().cuStreamBeginCapture_v2(stream, mode), CUDA_SUCCESS);
    EXPECT_EQ(table().cuMemFree_v2(address),
              is_allowed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(table().cuStreamEndCapture(stream, &graph),
              is_allowed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(graph != nullptr, is_allowed);
    if (graph) table().cuGraphDestroy(graph);
  }
  EXPECT_EQ(used(), 0u);
  EXPECT_EQ(table().cuStreamDestroy_v2(stream), CUDA_SUCCESS);
}

TEST_F(MovableMemoryTest, MemoryEndsWithItsContext) {
  CUcontext made = nullptr;
  ASSERT_EQ(table().cuCtxCreate_v2(&made, 0, 0), CUDA_SUCCESS);
  const CUdeviceptr address = allocate(12 * kMiB);
  ASSERT_EQ(table().cuCtxDestroy_v2(made), CUDA_SUCCESS);
  ASSERT_EQ(table().cuCtxSetCurrent(context_), CUDA_SUCCESS);
  EXPECT_EQ(used(), 0u);
  EXPECT_FALSE(word(address));
}

TEST_F(MovableMemoryTest, MemoryOfAGreenContextIsThePrimaryContexts) {
  CUdevResource all{}, part{};
  CUdevResourceDesc parts = nullptr;
  CUgreenCtx green = nullptr;
  CUcontext made = nullptr;
  unsigned count = 1;
  ASSERT_EQ(table().cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM), CUDA_SUCCESS);
  ASSERT_EQ(table().cuDevSmResourceSplitByCount(&part, &count, &all, nullptr, 0, 16), CUDA_SUCCESS);
  ASSERT_EQ(table().cuDevResourceGenerateDesc(&parts, &part, 1), CUDA_SUCCESS);
  ASSERT_EQ(table().cuGreenCtxCreate(&green, parts, 0, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_SUCCESS);
  ASSERT_EQ(table().cuCtxFromGreenCtx(&made, green), CUDA_SUCCESS);
  ASSERT_EQ(table().cuCtxSetCurrent(made), CUDA_SUCCESS);
  const CUdeviceptr freed = allocate(12 * kMiB), in_order = allocate(2 * kMiB);
  allocate(4 * kMiB);
  EXPECT_EQ(table().cuMemFreeAsync(in_order, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(table().cuGreenCtxDestroy(green), CUDA_SUCCESS);
  ASSERT_EQ(table().cuCtxSetCurrent(context_), CUDA_SUCCESS);
  EXPECT_EQ(table().cuMemFree_v2(freed), CUDA_SUCCESS);
  EXPECT_EQ(movable_->bytes()[0], 4 * kMiB);
  movable_->end_context(context_);  // a reset would also end objects of other tests
  EXPECT_EQ(movable_->bytes()[0], 0u);
  EXPECT_EQ(used(), 0u);
}

TEST_F(MovableMemoryTest, ProgramsCannotTakeAllocationsApart) {
  const CUdeviceptr address = allocate(3 * kMiB);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  EXPECT_EQ(table().cuMemGetAddressRange_v2(&base, &bytes, address + 7), CUDA_SUCCESS);
  EXPECT_EQ(base, address);
  EXPECT_EQ(bytes, 3 * kMiB);
  EXPECT_EQ(table().cuMemUnmap(address, 4 * kMiB), CUDA_ERROR_INVALID_VALUE);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(table().cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(address)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(table().cuMemFree_v2(address + 2 * kMiB), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(table().cuMemFree_v2(address), CUDA_SUCCESS);
  EXPECT_EQ(table().cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MovableMemoryTest, EveryDeviceOfTheSessionHasAccess) {
  movable_.reset();
  CUcontext other = nullptr;
  ASSERT_EQ(plain().cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
  movable_.emplace(plain(), names_, std::vector<SessionDevice>{{0, context_, 0}, {1, other, 1}},
                   true);
  const CUdeviceptr here = allocate(4 * kMiB);
  ASSERT_EQ(table().cuCtxSetCurrent(other), CUDA_SUCCESS);
  const CUdeviceptr there = allocate(6 * kMiB);
  fill(there, 6 * kMiB, 8);
  EXPECT_EQ(movable_->bytes(), (std::map<CUdevice, uint64_t>{{0, 4 * kMiB}, {1, 6 * kMiB}}));
  park_and_wake();
  for (const CUdevice device : {0, 1}) {
    const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    for (const CUdeviceptr address : {here, there}) {
      unsigned long long access = 0;
      EXPECT_EQ(table().cuMemGetAccess(&access, &location, address), CUDA_SUCCESS);
      EXPECT_EQ(access, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    }
  }
  EXPECT_EQ(table().cuMemcpyDtoD_v2(here, there, 4 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(word(here), 8u);
  EXPECT_EQ(table().cuMemFree_v2(here), CUDA_SUCCESS);
  EXPECT_EQ(table().cuMemFree_v2(there), CUDA_SUCCESS);
  ASSERT_EQ(table().cuCtxSetCurrent(context_), CUDA_SUCCESS);
  plain().cuDevicePrimaryCtxRelease_v2(1);
}

TEST_F(MovableMemoryTest, OnlyDevicesThatCanReachOpenedMemoryGetAccess) {
  CUcontext other = nullptr;
  ASSERT_EQ(plain().cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
  const std::vector<SessionDevice> devices{{0, context_, 0}, {1, other, 1}};
  api::DriverTable apart = plain();
  apart.cuDeviceCanAccessPeer = [](int* can, CUdevice, CUdevice) {
    *can = 0;
    return CUDA_SUCCESS;
  };
  wire::Work done{};
  Meters meters(apart, devices, std::make_shared<Quota>(), {}, &done);
  OpenedMemory opened(meters, devices);
  const CUdeviceptr address = allocate(2 * kMiB);
  const auto name = movable_->export_allocation(address, {});
  ASSERT_TRUE(name.ok());
  ExportOrigin origin;
  Result<UniqueFd> file = names_.find_descriptor(*name, &origin);
  ASSERT_TRUE(file.ok());
  CUdeviceptr there = 0;
  ASSERT_EQ(opened.open(name->secret, *std::move(file), origin, 0, &there), CUDA_SUCCESS);
  for (const CUdevice device : {0, 1}) {
    const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    unsigned long long access = 0;
    EXPECT_EQ(plain().cuMemGetAccess(&access, &location, there), CUDA_SUCCESS);
    EXPECT_EQ(access != 0, device == 0);
  }
  EXPECT_EQ(opened.close(there), CUDA_SUCCESS);
  EXPECT_EQ(table().cuMemFree_v2(address), CUDA_SUCCESS);
  plain().cuDevicePrimaryCtxRelease_v2(1);
}

TEST_F(MovableMemoryTest, GraphsUseTheMemoryAfterAWake) {
  const CUdeviceptr from = allocate(4 * kMiB), to = allocate(4 * kMiB);
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  ASSERT_EQ(table().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(table().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(table().cuMemcpyDtoDAsync_v2(to, from, 4 * kMiB, stream), CUDA_SUCCESS);
  EXPECT_EQ(table().cuMemsetD32Async(from, 99, kMiB, stream), CUDA_SUCCESS);
  ASSERT_EQ(table().cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  ASSERT_EQ(table().cuGraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
  fill(from, 4 * kMiB, 7);
  park_and_wake();
  ASSERT_EQ(table().cuGraphLaunch(executable, stream), CUDA_SUCCESS);
  ASSERT_EQ(table().cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(word(to), 7u);
  EXPECT_EQ(word(from), 99u);
  EXPECT_EQ(table().cuGraphExecDestroy(executable), CUDA_SUCCESS);
  EXPECT_EQ(table().cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(table().cuStreamDestroy_v2(stream), CUDA_SUCCESS);
  EXPECT_EQ(table().cuMemFree_v2(from), CUDA_SUCCESS);
  EXPECT_EQ(table().cuMemFree_v2(to), CUDA_SUCCESS);
}

}  // namespace
}  // namespace rcuda::server
