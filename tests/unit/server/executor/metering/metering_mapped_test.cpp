// A quota of device memory against programs that try to break it: memory of cuMemCreate, which
// lives as long as its handles, mappings and exported descriptors, and which other processes
// import.
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/unit/server/executor/metering/metering_fixture.h"

namespace rcuda::server {
namespace {

class MappedMemoryTest : public MeteringTest {
 protected:
  MappedMemoryTest() {
    plain().cuMemAddressReserve(&area_, 4 * kLimit, 0, 0, 0);
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    properties_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  }
  ~MappedMemoryTest() override { plain().cuMemAddressFree(area_, 4 * kLimit); }

  CUresult create(uint64_t bytes) { return table().cuMemCreate(&memory_, bytes, &properties_, 0); }

  CUdeviceptr area_ = 0;
  CUmemAllocationProp properties_{};
  CUmemGenericAllocationHandle memory_ = 0;
};

TEST_F(MappedMemoryTest, EndsAtTheLimit) {
  EXPECT_EQ(create(80 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(create(1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(booked(), 0u);
  ASSERT_EQ(create(40 * kMiB), CUDA_SUCCESS);
  CUdeviceptr plain_memory = 0;
  EXPECT_EQ(table().cuMemAlloc_v2(&plain_memory, 40 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(table().cuMemRelease(memory_), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
}

TEST_F(MappedMemoryTest, LivesAsLongAsAHandleOrAMapping) {
  ASSERT_EQ(create(40 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(table().cuMemMap(area_, 40 * kMiB, 0, memory_, 0), CUDA_SUCCESS);
  ASSERT_EQ(table().cuMemMap(area_ + kLimit, 20 * kMiB, 0, memory_, 0), CUDA_SUCCESS);
  ASSERT_EQ(table().cuMemRelease(memory_), CUDA_SUCCESS);
  EXPECT_EQ(table().cuMemUnmap(area_, 20 * kMiB), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(table().cuMemUnmap(area_, 40 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 40 * kMiB);
  CUmemGenericAllocationHandle again = 0;
  ASSERT_EQ(table().cuMemRetainAllocationHandle(&again,
                                                reinterpret_cast<void*>(area_ + kLimit + 2 * kMiB)),
            CUDA_SUCCESS);
  ASSERT_EQ(table().cuMemUnmap(area_ + kLimit, 20 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 40 * kMiB);
  ASSERT_EQ(table().cuMemRelease(again), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
}

// The exporter has no limit, and the descriptor does not show the size of the memory.
TEST_F(MappedMemoryTest, ImportedMemoryOfUnknownSizeCountsByItsMapping) {
  ASSERT_EQ(plain().cuMemCreate(&memory_, 80 * kMiB, &properties_, 0), CUDA_SUCCESS);
  int file = -1;
  ASSERT_EQ(plain().cuMemExportToShareableHandle(&file, memory_,
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  plain().cuMemRelease(memory_);
  CUmemGenericAllocationHandle imported = 0;
  ASSERT_EQ(table().cuMemImportFromShareableHandle(
                &imported, reinterpret_cast<void*>(static_cast<intptr_t>(file)),
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_SUCCESS);
  ::close(file);
  EXPECT_EQ(table().cuMemMap(area_, 80 * kMiB, 0, imported, 0), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(table().cuMemMap(area_, 40 * kMiB, 0, imported, 0), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 40 * kMiB);
  ASSERT_EQ(table().cuMemRelease(imported), CUDA_SUCCESS);
  ASSERT_EQ(table().cuMemUnmap(area_, 40 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
}

// Memory that another session of the same user has made and exported.
class ImportedMemoryTest : public MappedMemoryTest {
 protected:
  ImportedMemoryTest() {
    EXPECT_EQ(plain().cuMemCreate(&memory_, 40 * kMiB, &properties_, 0), CUDA_SUCCESS);
    EXPECT_EQ(plain().cuMemExportToShareableHandle(&file_, memory_,
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_SUCCESS);
    EXPECT_EQ(plain().cuMemRelease(memory_), CUDA_SUCCESS);
  }
  ~ImportedMemoryTest() override { ::close(file_); }

  CUresult import(CUmemGenericAllocationHandle* handle) {
    return metered_->import_allocation(
        handle, reinterpret_cast<void*>(static_cast<intptr_t>(file_)), origin_, 0);
  }

  int file_ = -1;
  ExportOrigin origin_{
      .place = ExportOrigin::Place::kDevice, .bytes = 40 * kMiB, .memory = {1, 2, 3}};
};

TEST_F(ImportedMemoryTest, CountsFromItsImportToItsRelease) {
  CUmemGenericAllocationHandle imported = 0;
  const CUdeviceptr other = allocate(40 * kMiB);
  EXPECT_EQ(import(&imported), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(imported, 0u) << "the driver was asked";
  ASSERT_EQ(table().cuMemFree_v2(other), CUDA_SUCCESS);
  ASSERT_EQ(import(&imported), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 40 * kMiB);
  ASSERT_EQ(table().cuMemMap(area_, 40 * kMiB, 0, imported, 0), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 40 * kMiB);
  ASSERT_EQ(table().cuMemRelease(imported), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 40 * kMiB);
  ASSERT_EQ(table().cuMemUnmap(area_, 40 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
}

TEST_F(ImportedMemoryTest, CountsOnceHoweverOftenItIsImported) {
  CUmemGenericAllocationHandle first = 0, second = 0;
  ASSERT_EQ(import(&first), CUDA_SUCCESS);
  ASSERT_EQ(import(&second), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 40 * kMiB);
  ASSERT_EQ(table().cuMemRelease(first), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 40 * kMiB);
  ASSERT_EQ(table().cuMemRelease(second), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
  ASSERT_EQ(import(&first), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 40 * kMiB);
  ASSERT_EQ(table().cuMemRelease(first), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
}

TEST_F(ImportedMemoryTest, WhatTheDriverRefusesIsNotBooked) {
  CUmemGenericAllocationHandle imported = 0;
  EXPECT_NE(
      metered_->import_allocation(&imported, reinterpret_cast<void*>(intptr_t{-1}), origin_, 0),
      CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
}

// The exported descriptor keeps the memory in the driver.
TEST_F(MappedMemoryTest, ExportedMemoryCountsAsLongAsItsName) {
  ASSERT_EQ(create(40 * kMiB), CUDA_SUCCESS);
  ExportOrigin first, second;
  std::shared_ptr<const void> kept = metered_->physical.describe(memory_, &first);
  ASSERT_TRUE(kept);
  EXPECT_EQ(first.bytes, 40 * kMiB);
  EXPECT_TRUE(metered_->physical.describe(memory_, &second));
  EXPECT_EQ(first, second) << "the same memory has the same key";
  ASSERT_EQ(table().cuMemRelease(memory_), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 40 * kMiB);
  kept.reset();
  EXPECT_EQ(booked(), 0u);
}

}  // namespace
}  // namespace rcuda::server
