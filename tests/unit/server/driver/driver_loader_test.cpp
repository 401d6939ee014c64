// The choice of a worker's driver: softgpu with different driver versions, and a driver that is too
// old. Each test runs in a process of its own.
#include "server/driver/driver_loader.h"

#include <cstdlib>
#include <string>

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rcuda::server {
namespace {

api::DriverTable load(const char* version) {
  ::setenv("SOFTGPU_DRIVER_VERSION", version, 1);
  Result<LoadedDriver> loaded = load_driver(RCUDA_TEST_DRIVER);
  EXPECT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->version, std::atoi(version));
  return loaded->table;
}

TEST(DriverLoaderTest, FunctionsThatCameLaterAreMissing) {
  const api::DriverTable driver = load("12040");
  EXPECT_EQ(driver.cuMemBatchDecompressAsync, nullptr);
  EXPECT_EQ(driver.cuCtxRecordEvent, nullptr);
  EXPECT_NE(driver.cuFuncGetParamInfo, nullptr);
}

TEST(DriverLoaderTest, ADriverNewerThanTheHeadersServes) {
  const api::DriverTable driver = load("14000");
  EXPECT_NE(driver.cuCtxSynchronize_v2, nullptr);
}

void expect_too_old(const Result<LoadedDriver>& loaded) {
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.status().code(), Code::kUnsupported);
  EXPECT_THAT(loaded.status().message(), testing::AllOf(testing::HasSubstr("of CUDA 12.2"),
                                                        testing::HasSubstr("one of CUDA 12.4"),
                                                        testing::HasSubstr("install NVIDIA")));
  EXPECT_THAT(loaded.status().message(), testing::Not(testing::HasSubstr("\n")));
}

TEST(DriverLoaderTest, AnOlderDriverIsRefused) {
  expect_too_old(load_driver(RCUDA_TEST_OLD_DRIVER));
}

TEST(DriverLoaderTest, SoftgpuDoesNotReplaceAnOlderDriver) {
  // Its SONAME is libcuda.so.1, so load_driver() finds this library, which is already loaded.
  ASSERT_NE(::dlopen(RCUDA_TEST_OLD_DRIVER, RTLD_NOW | RTLD_LOCAL), nullptr) << ::dlerror();
  expect_too_old(load_driver("auto"));
}

// The error names the driver, the reason and the way to use softgpu.
void expect_broken(const Result<LoadedDriver>& loaded, const char* trace, const char* reason) {
  ASSERT_FALSE(loaded.ok());
  EXPECT_THAT(loaded.status().message(),
              testing::AllOf(testing::HasSubstr(trace), testing::HasSubstr(reason),
                             testing::HasSubstr("--driver softgpu")));
}

TEST(DriverLoaderTest, SoftgpuDoesNotReplaceABrokenDriver) {
  ASSERT_NE(::dlopen(RCUDA_TEST_BROKEN_DRIVER, RTLD_NOW | RTLD_LOCAL), nullptr) << ::dlerror();
  const Result<LoadedDriver> loaded = load_driver("auto");
  expect_broken(loaded, RCUDA_TEST_BROKEN_DRIVER, "restart the machine");
  EXPECT_EQ(loaded.status().cuda(), CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
}

TEST(DriverLoaderTest, SoftgpuDoesNotReplaceAMissingLibrary) {
  if (::dlopen("libcuda.so.1", RTLD_NOW)) return;  // this machine has a driver
  // Also without the node of a GPU: the kernel driver is loaded, but has found no GPU that works.
  for (const std::string node : {"nvidia0", "nvidiactl", "nvidia-uvm"}) {
    expect_broken(load_driver("auto", {node}), ("/dev/" + node).c_str(), "libcuda.so.1");
  }
}

TEST(DriverLoaderTest, SoftgpuServesIfItIsNamedOrThereIsNoDriver) {
  EXPECT_TRUE(load_driver("auto").ok());
  EXPECT_TRUE(load_driver("softgpu", {"nvidia0"}).ok());
}

}  // namespace
}  // namespace rcuda::server
