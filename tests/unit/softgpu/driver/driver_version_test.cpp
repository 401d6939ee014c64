// SOFTGPU_DRIVER_VERSION: each test runs in its own process, with its own version.
#include <cstdlib>

#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "api/driver_table.h"

namespace softgpu::driver {
namespace {

void be(const char* version) { ::setenv("SOFTGPU_DRIVER_VERSION", version, 1); }

int version() {
  int version = 0;
  EXPECT_EQ(cuDriverGetVersion(&version), CUDA_SUCCESS);
  return version;
}

struct Found {
  CUresult result;
  void* function = nullptr;
  CUdriverProcAddressQueryResult status{};
};

Found find(const char* name, int version, cuuint64_t flags = 0) {
  Found found;
  found.result = cuGetProcAddress_v2(name, &found.function, version, flags, &found.status);
  return found;
}

TEST(DriverVersionTest, IsThatOfTheHeadersUnlessSaid) {
  ::unsetenv("SOFTGPU_DRIVER_VERSION");
  EXPECT_EQ(version(), CUDA_VERSION);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(version(), CUDA_VERSION);
}

TEST(DriverVersionTest, AnOlderDriverSaysSoBeforeAndAfterCuInit) {
  be("12040");
  EXPECT_EQ(version(), 12040);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(version(), 12040);
}

TEST(DriverVersionTest, AnOlderDriverDoesNotKnowWhatCameLater) {
  be("12040");
  for (const int version : {12000, 12020, 12040}) {
    const Found missing = find("cuCtxRecordEvent", version);
    EXPECT_EQ(missing.result, CUDA_SUCCESS) << version;
    EXPECT_EQ(missing.function, nullptr) << version;
    EXPECT_EQ(missing.status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND) << version;
  }
  const Found current = find("cuMemPrefetchAsync", 12020);
  EXPECT_NE(current.function, nullptr);
  EXPECT_NE(current.function, find("cuMemPrefetchAsync", 12010).function);
  EXPECT_NE(
      find("cuMemPrefetchAsync", 12020, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM).function,
      current.function);
  // Known, but introduced after the requested version.
  EXPECT_EQ(find("cuMemAdvise", 7000).status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

TEST(DriverVersionTest, ADriverKnowsNothingOfLaterVersions) {
  be("12040");
  for (const char* name : {"cuMemAlloc", "cuMemPrefetchAsync", "cuNoSuchThing"}) {
    const Found later = find(name, 12050);
    EXPECT_EQ(later.result, CUDA_ERROR_INVALID_VALUE) << name;
    EXPECT_EQ(later.function, nullptr) << name;
  }
  EXPECT_NE(find("cuMemPrefetchAsync", 12040).function, nullptr);
}

TEST(DriverVersionTest, WhatAnOlderDriverLacksIsNotSupported) {
  be("12040");
  CUstreamCaptureStatus status{};
  // Before cuInit, the call returns the error for that, not the one for the version.
  CUdevice device = -1;
  EXPECT_EQ(cuStreamGetDevice(nullptr, &device), CUDA_ERROR_NOT_INITIALIZED);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUcontext context;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamGetDevice(nullptr, &device), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(device, -1);
  EXPECT_EQ(cuStreamGetDevice_ptsz(nullptr, &device), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuCtxSynchronize_v2(context), CUDA_ERROR_NOT_SUPPORTED);
  // The function of 12.0 must work, although softgpu implements it with the newer one.
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(
      cuStreamGetCaptureInfo_v3(nullptr, &status, nullptr, nullptr, nullptr, nullptr, nullptr),
      CUDA_SUCCESS);
}

TEST(DriverVersionTest, TheTableOfAnOlderDriverLacksWhatCameLater) {
  be("12040");
  rcuda::api::DriverTable table;
  ASSERT_TRUE(rcuda::api::load(&table, "libcuda.so.1").ok());
  EXPECT_EQ(table.cuCtxRecordEvent, nullptr);
  EXPECT_EQ(table.cuCtxSynchronize_v2, nullptr);
  EXPECT_EQ(table.cuStreamGetDevice_ptsz, nullptr);
  EXPECT_NE(table.cuFuncGetParamInfo, nullptr);
  EXPECT_NE(table.cuCtxSynchronize, nullptr);
}

TEST(DriverVersionTest, ANewerDriverHasAllOfTheHeaders) {
  be("14020");
  EXPECT_EQ(version(), 14020);
  EXPECT_NE(find("cuCtxSynchronize", 14020).function, nullptr);
  EXPECT_EQ(find("cuCtxSynchronize", 14020).function, find("cuCtxSynchronize", 13000).function);
  EXPECT_EQ(find("cuFunctionOfTheFuture", 14020).function, nullptr);
  rcuda::api::DriverTable table;
  ASSERT_TRUE(rcuda::api::load(&table, "libcuda.so.1").ok());
  EXPECT_NE(table.cuCtxSynchronize_v2, nullptr);
  EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
}

class MalformedVersionTest : public testing::TestWithParam<const char*> {};

TEST_P(MalformedVersionTest, IsRefused) {
  be(GetParam());
  EXPECT_EQ(cuInit(0), CUDA_ERROR_INVALID_VALUE);
}

INSTANTIATE_TEST_SUITE_P(All, MalformedVersionTest,
                         testing::Values("", "12.4", "11080", "12030", "12045", "100000", "12040x"));

}  // namespace
}  // namespace softgpu::driver
