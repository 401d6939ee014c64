// A worker's driver, in every version that softgpu can act as. Each test runs in its own process.
#include "server/driver/driver_loader.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rcuda::server {
namespace {

constexpr const char* kPtx = R"(
.version 6.4
.target sm_75
.address_size 64
.visible .entry first(.param .u8 small, .param .align 8 .b8 pair[16]) { ret; }
.visible .entry second() { ret; }
)";

struct Driver {
  api::DriverTable table;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
};

Driver load(const char* version) {
  ::setenv("SOFTGPU_DRIVER_VERSION", version, 1);
  Result<LoadedDriver> loaded = load_driver(RCUDA_TEST_DRIVER);
  EXPECT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->version, std::atoi(version));
  Driver driver{loaded->table};
  EXPECT_EQ(driver.table.cuDevicePrimaryCtxRetain(&driver.context, 0), CUDA_SUCCESS);
  EXPECT_EQ(driver.table.cuCtxSetCurrent(driver.context), CUDA_SUCCESS);
  EXPECT_EQ(driver.table.cuModuleLoadDataEx(&driver.module, kPtx, 0, nullptr, nullptr),
            CUDA_SUCCESS);
  EXPECT_EQ(driver.table.cuLibraryLoadData(&driver.library, kPtx, nullptr, nullptr, 0, nullptr,
                                           nullptr, 0),
            CUDA_SUCCESS);
  return driver;
}

class OlderDriverTest : public testing::TestWithParam<const char*> {};

TEST_P(OlderDriverTest, TellsParametersOfKernels) {
  const Driver driver = load(GetParam());
  CUfunction function, made;
  CUkernel kernel;
  ASSERT_EQ(driver.table.cuModuleGetFunction(&function, driver.module, "first"), CUDA_SUCCESS);
  ASSERT_EQ(driver.table.cuLibraryGetKernel(&kernel, driver.library, "first"), CUDA_SUCCESS);
  ASSERT_EQ(driver.table.cuKernelGetFunction(&made, kernel), CUDA_SUCCESS);
  size_t offset = 0, bytes = 0;
  for (const CUfunction each : {function, made}) {
    EXPECT_EQ(driver.table.cuFuncGetParamInfo(each, 0, &offset, &bytes), CUDA_SUCCESS);
    EXPECT_EQ(offset, 0u);
    EXPECT_EQ(bytes, 1u);
    EXPECT_EQ(driver.table.cuFuncGetParamInfo(each, 1, &offset, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(offset, 8u);
    EXPECT_EQ(driver.table.cuFuncGetParamInfo(each, 2, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(driver.table.cuKernelGetParamInfo(kernel, 1, &offset, &bytes), CUDA_SUCCESS);
  EXPECT_EQ(offset, 8u);
  EXPECT_EQ(bytes, 16u);
}

TEST_P(OlderDriverTest, TellsNamesOfKernels) {
  const Driver driver = load(GetParam());
  unsigned count = 0;
  std::vector<CUfunction> functions(2);
  std::vector<CUkernel> kernels(2);
  ASSERT_EQ(driver.table.cuModuleGetFunctionCount(&count, driver.module), CUDA_SUCCESS);
  EXPECT_EQ(count, 2u);
  ASSERT_EQ(driver.table.cuLibraryGetKernelCount(&count, driver.library), CUDA_SUCCESS);
  EXPECT_EQ(count, 2u);
  ASSERT_EQ(driver.table.cuModuleEnumerateFunctions(functions.data(), 2, driver.module),
            CUDA_SUCCESS);
  ASSERT_EQ(driver.table.cuLibraryEnumerateKernels(kernels.data(), 2, driver.library),
            CUDA_SUCCESS);
  std::vector<std::string> of_functions, of_kernels;
  for (unsigned i = 0; i < 2; ++i) {
    const char* name = nullptr;
    ASSERT_EQ(driver.table.cuFuncGetName(&name, functions[i]), CUDA_SUCCESS);
    of_functions.emplace_back(name);
    ASSERT_EQ(driver.table.cuKernelGetName(&name, kernels[i]), CUDA_SUCCESS);
    of_kernels.emplace_back(name);
  }
  EXPECT_THAT(of_functions, testing::UnorderedElementsAre("first", "second"));
  EXPECT_THAT(of_kernels, testing::UnorderedElementsAre("first", "second"));
}

TEST_P(OlderDriverTest, ForgetsWhatIsUnloaded) {
  const Driver driver = load(GetParam());
  unsigned count = 0;
  ASSERT_EQ(driver.table.cuModuleUnload(driver.module), CUDA_SUCCESS);
  ASSERT_EQ(driver.table.cuLibraryUnload(driver.library), CUDA_SUCCESS);
  EXPECT_NE(driver.table.cuModuleGetFunctionCount(&count, driver.module), CUDA_SUCCESS);
  EXPECT_NE(driver.table.cuLibraryGetKernelCount(&count, driver.library), CUDA_SUCCESS);
  CUfunction function;
  EXPECT_NE(driver.table.cuModuleGetFunction(&function, driver.module, "first"), CUDA_SUCCESS);
}

TEST_P(OlderDriverTest, HasGraphEdgesWithoutData) {
  const Driver driver = load(GetParam());
  const api::DriverTable& table = driver.table;
  CUgraph graph;
  CUgraphNode nodes[2];
  ASSERT_EQ(table.cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  for (CUgraphNode& node : nodes) {
    ASSERT_EQ(table.cuGraphAddEmptyNode(&node, graph, nullptr, 0), CUDA_SUCCESS);
  }
  CUgraphEdgeData data{};
  ASSERT_EQ(table.cuGraphAddDependencies_v2(graph, &nodes[0], &nodes[1], &data, 1), CUDA_SUCCESS);
  CUgraphNode from = nullptr, to = nullptr;
  size_t count = 1;
  std::memset(&data, 0xff, sizeof data);
  ASSERT_EQ(table.cuGraphGetEdges_v2(graph, &from, &to, &data, &count), CUDA_SUCCESS);
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(from, nodes[0]);
  EXPECT_EQ(to, nodes[1]);
  constexpr CUgraphEdgeData kPlain{};
  EXPECT_EQ(std::memcmp(&data, &kPlain, sizeof data), 0);
  ASSERT_EQ(table.cuGraphNodeGetDependencies_v2(nodes[1], &from, &data, &count), CUDA_SUCCESS);
  EXPECT_EQ(from, nodes[0]);
  ASSERT_EQ(table.cuGraphNodeGetDependentNodes_v2(nodes[0], &to, &data, &count), CUDA_SUCCESS);
  EXPECT_EQ(to, nodes[1]);
  ASSERT_EQ(table.cuGraphRemoveDependencies_v2(graph, &nodes[0], &nodes[1], nullptr, 1),
            CUDA_SUCCESS);
  ASSERT_EQ(table.cuGraphGetEdges_v2(graph, nullptr, nullptr, nullptr, &count), CUDA_SUCCESS);
  EXPECT_EQ(count, 0u);
}

TEST_P(OlderDriverTest, TellsOfCaptures) {
  const Driver driver = load(GetParam());
  const api::DriverTable& table = driver.table;
  CUstream stream;
  ASSERT_EQ(table.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(table.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  CUstreamCaptureStatus status{};
  CUgraph graph = nullptr;
  CUgraphNode node;
  const CUgraphNode* tips = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  size_t count = 0;
  ASSERT_EQ(
      table.cuStreamGetCaptureInfo_v3(stream, &status, nullptr, &graph, nullptr, nullptr, nullptr),
      CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  ASSERT_EQ(table.cuGraphAddEmptyNode(&node, graph, nullptr, 0), CUDA_SUCCESS);
  ASSERT_EQ(table.cuStreamUpdateCaptureDependencies_v2(stream, &node, nullptr, 1,
                                                       CU_STREAM_SET_CAPTURE_DEPENDENCIES),
            CUDA_SUCCESS);
  ASSERT_EQ(
      table.cuStreamGetCaptureInfo_v3(stream, &status, nullptr, &graph, &tips, &edges, &count),
      CUDA_SUCCESS);
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(tips[0], node);
}

INSTANTIATE_TEST_SUITE_P(Versions, OlderDriverTest,
                         testing::Values("12000", "12030", "12040", "13000"),
                         [](const auto& info) { return "Of" + std::string(info.param); });

TEST(DriverLoaderTest, WhatHasNoOlderEquivalentIsMissing) {
  const Driver driver = load("12030");
  EXPECT_EQ(driver.table.cuMemBatchDecompressAsync, nullptr);
  EXPECT_EQ(driver.table.cuCtxRecordEvent, nullptr);
  EXPECT_NE(driver.table.cuStreamBeginCaptureToGraph, nullptr);
}

TEST(DriverLoaderTest, ADriverNewerThanTheHeadersServes) {
  const Driver driver = load("14000");
  EXPECT_NE(driver.table.cuCtxSynchronize_v2, nullptr);
}

TEST(DriverLoaderTest, ADriverBeforeLibrariesIsRefused) {
  const Result<LoadedDriver> loaded = load_driver(RCUDA_TEST_ANCIENT_DRIVER);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.status().code(), Code::kUnsupported);
  EXPECT_THAT(loaded.status().message(), testing::HasSubstr("CUDA 11.8"));
}

}  // namespace
}  // namespace rcuda::server
