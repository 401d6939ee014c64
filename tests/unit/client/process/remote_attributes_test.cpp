#include "client/process/remote_attributes.h"

#include <cuda.h>
#include <gtest/gtest.h>

namespace rcuda::client {
namespace {

// A server's GPU that shares all memory with its processor does not share the client's memory.
TEST(RemoteAttributes, WhatTheServersMachineSharesIsNotShared) {
  wire::DeviceInfo info;
  info.attributes.assign(CU_DEVICE_ATTRIBUTE_MAX, 1);
  correct_attributes(&info);
  EXPECT_EQ(info.attributes[CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS], 0);
  EXPECT_EQ(info.attributes[CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED], 0);
  EXPECT_EQ(info.attributes[CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS], 0);
  EXPECT_EQ(info.attributes[CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED], 0);
  EXPECT_EQ(info.attributes[CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY], 1);
  EXPECT_EQ(info.attributes[CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING], 1);
}

// The driver of an older server knows fewer attributes.
TEST(RemoteAttributes, ShortListsStayShort) {
  wire::DeviceInfo info;
  info.attributes.assign(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS + 1, 1);
  correct_attributes(&info);
  EXPECT_EQ(info.attributes.size(), size_t{CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS} + 1);
  EXPECT_EQ(info.attributes.back(), 0);
}

}  // namespace
}  // namespace rcuda::client
