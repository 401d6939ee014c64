// Launches: refusals and their errors, parameters in both forms, attributes and occupancy. Expected
// values are those of driver 580 on an H200.
#include <cstring>

#include "tests/unit/softgpu/driver/stream_fixture.h"

namespace softgpu::driver {
namespace {

class LaunchTest : public StreamFixture {
 protected:
  struct Shape {
    unsigned gx = 1, gy = 1, gz = 1, bx = 1, by = 1, bz = 1, shared = 0;
  };
  CUresult launch(CUfunction f, const Shape& s, void** parameters = nullptr,
                  void** extra = nullptr) {
    return cuLaunchKernel(f, s.gx, s.gy, s.gz, s.bx, s.by, s.bz, s.shared, nullptr, parameters,
                          extra);
  }
};

TEST_F(LaunchTest, RefusesShapesTheDeviceCannotRun) {
  EXPECT_EQ(launch(nullptr, Shape{}), CUDA_ERROR_INVALID_HANDLE);
  for (const Shape& shape :
       {Shape{0}, Shape{1, 0}, Shape{1, 1, 0}, Shape{1, 1, 1, 0}, Shape{1, 1, 1, 1, 0},
        Shape{1, 1, 1, 1, 1, 0}, Shape{1, 1, 1, 1025}, Shape{1, 1, 1, 2048}, Shape{1, 1, 1, 64, 32},
        Shape{1, 1, 1, 1, 1025}, Shape{1, 1, 1, 1, 1, 65}, Shape{0x80000000u}, Shape{1, 65536},
        Shape{1, 1, 65536}}) {
    EXPECT_EQ(launch(empty_, shape), CUDA_ERROR_INVALID_VALUE)
        << shape.gx << ' ' << shape.gy << ' ' << shape.gz << ' ' << shape.bx << ' ' << shape.by
        << ' ' << shape.bz;
  }
  CUDA_OK(launch(empty_, Shape{1, 1, 1, 1024}));
  CUDA_OK(launch(empty_, Shape{1, 1, 1, 16, 1, 64}));
  CUDA_OK(cuCtxSynchronize());
}

TEST_F(LaunchTest, DynamicSharedMemoryBeyondTheDefaultNeedsOptIn) {
  const CUfunction with_static = function("shared");  // 1 KB of its own
  CUdeviceptr out = word(0);
  void* parameters[] = {&out};
  CUDA_OK(launch(empty_, Shape{1, 1, 1, 1, 1, 1, 48 * 1024}));
  EXPECT_EQ(launch(empty_, Shape{1, 1, 1, 1, 1, 1, 48 * 1024 + 1}), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(launch(with_static, Shape{1, 1, 1, 1, 1, 1, 47 * 1024}, parameters));
  EXPECT_EQ(launch(with_static, Shape{1, 1, 1, 1, 1, 1, 48 * 1024}, parameters),
            CUDA_ERROR_INVALID_VALUE);

  constexpr auto kDynamic = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  int value = 0;
  CUDA_OK(cuFuncGetAttribute(&value, kDynamic, with_static));
  EXPECT_EQ(value, 47 * 1024);
  EXPECT_EQ(cuFuncSetAttribute(with_static, kDynamic, 227 * 1024), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuFuncSetAttribute(with_static, kDynamic, 226 * 1024));
  EXPECT_EQ(cuFuncSetAttribute(empty_, kDynamic, 227 * 1024 + 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuFuncSetAttribute(empty_, kDynamic, -1), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuFuncSetAttribute(empty_, kDynamic, 227 * 1024));
  CUDA_OK(cuFuncGetAttribute(&value, kDynamic, empty_));
  EXPECT_EQ(value, 227 * 1024);
  CUDA_OK(launch(empty_, Shape{1, 1, 1, 1, 1, 1, 227 * 1024}));
  EXPECT_EQ(launch(empty_, Shape{1, 1, 1, 1, 1, 1, 227 * 1024 + 1}), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuCtxSynchronize());
}

TEST_F(LaunchTest, KeepsToTheBlocksTheKernelWasCompiledFor) {
  const CUfunction at_most_64 = function("maxn"), exactly_32_2 = function("reqn");
  CUDA_OK(launch(at_most_64, Shape{1, 1, 1, 64}));
  CUDA_OK(launch(at_most_64, Shape{1, 1, 1, 32, 2}));
  EXPECT_EQ(launch(at_most_64, Shape{1, 1, 1, 65}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(at_most_64, Shape{1, 1, 1, 32, 4}), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(launch(exactly_32_2, Shape{1, 1, 1, 32, 2}));
  EXPECT_EQ(launch(exactly_32_2, Shape{1, 1, 1, 64}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(exactly_32_2, Shape{1, 1, 1, 32}), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuCtxSynchronize());
}

TEST_F(LaunchTest, ParametersComePackedOrByPointer) {
  CUdeviceptr at = word(0);
  uint32_t value = 5;
  void* pointers[] = {&at, &value};
  CUDA_OK(launch(set_, Shape{}, pointers));
  CUDA_OK(cuCtxSynchronize());
  EXPECT_EQ(read(0), 5u);

  unsigned char buffer[16] = {};
  size_t size = 12;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  value = 6;
  std::memcpy(buffer, &at, 8);
  std::memcpy(buffer + 8, &value, 4);
  CUDA_OK(launch(set_, Shape{}, nullptr, extra));
  std::memset(buffer, 0xff, sizeof buffer);  // the launch has its own copy
  CUDA_OK(cuCtxSynchronize());
  EXPECT_EQ(read(0), 6u);

  size = 16;
  EXPECT_EQ(launch(set_, Shape{}, nullptr, extra), CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  size = 12;
  EXPECT_EQ(launch(set_, Shape{}, pointers, extra), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(set_, Shape{}), CUDA_ERROR_INVALID_VALUE);
  void* nothing[] = {CU_LAUNCH_PARAM_END};
  EXPECT_EQ(launch(set_, Shape{}, nullptr, nothing), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(launch(empty_, Shape{}, nullptr, nothing));
  void* unknown[] = {reinterpret_cast<void*>(7), CU_LAUNCH_PARAM_END};
  EXPECT_EQ(launch(empty_, Shape{}, nullptr, unknown), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(LaunchTest, CooperativeGridsMustBeResidentAtOnce) {
  int multiprocessors = 0;
  CUDA_OK(
      cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device_));
  const auto fit = static_cast<unsigned>(multiprocessors) * 16;  // blocks of 128 threads
  CUDA_OK(cuLaunchCooperativeKernel(empty_, fit, 1, 1, 128, 1, 1, 0, nullptr, nullptr));
  EXPECT_EQ(cuLaunchCooperativeKernel(empty_, fit + 1, 1, 1, 128, 1, 1, 0, nullptr, nullptr),
            CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  CUDA_OK(cuCtxSynchronize());
}

TEST_F(LaunchTest, LaunchAttributes) {
  CUlaunchAttribute attribute{};
  CUlaunchConfig config{4, 1, 1, 1, 1, 1, 0, nullptr, &attribute, 1};
  EXPECT_EQ(cuLaunchKernelEx(nullptr, empty_, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attribute.value.programmaticStreamSerializationAllowed = 1;
  CUDA_OK(cuLaunchKernelEx(&config, empty_, nullptr, nullptr));
  attribute.id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
  attribute.value.priority = -99;
  CUDA_OK(cuLaunchKernelEx(&config, empty_, nullptr, nullptr));
  attribute.id = CU_LAUNCH_ATTRIBUTE_IGNORE;
  CUDA_OK(cuLaunchKernelEx(&config, empty_, nullptr, nullptr));
  attribute.id = static_cast<CUlaunchAttributeID>(77);
  EXPECT_EQ(cuLaunchKernelEx(&config, empty_, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {1, 1, 1};
  CUDA_OK(cuLaunchKernelEx(&config, empty_, nullptr, nullptr));
  attribute.value.clusterDim = {0, 1, 1};
  EXPECT_EQ(cuLaunchKernelEx(&config, empty_, nullptr, nullptr), CUDA_ERROR_INVALID_CLUSTER_SIZE);
  attribute.value.clusterDim = {3, 1, 1};
  EXPECT_EQ(cuLaunchKernelEx(&config, empty_, nullptr, nullptr), CUDA_ERROR_INVALID_CLUSTER_SIZE);

  const CUevent timed = event(), done = event(CU_EVENT_DISABLE_TIMING);
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT;
  attribute.value.programmaticEvent = {timed, 0, 0};
  EXPECT_EQ(cuLaunchKernelEx(&config, empty_, nullptr, nullptr), CUDA_ERROR_NOT_SUPPORTED);
  attribute.value.programmaticEvent = {done, 0, 0};
  CUDA_OK(cuLaunchKernelEx(&config, empty_, nullptr, nullptr));
  CUDA_OK(cuEventSynchronize(done));

  // A launch may record two events: both wait for what is queued before it.
  const CUevent also_done = event(CU_EVENT_DISABLE_TIMING);
  CUlaunchAttribute both[2] = {attribute, {}};
  both[1].id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT;
  both[1].value.launchCompletionEvent = {also_done, 0};
  config.attrs = both;
  config.numAttrs = 2;
  config.hStream = stream();
  CUDA_OK(spin(config.hStream, word(0)));
  CUDA_OK(cuLaunchKernelEx(&config, empty_, nullptr, nullptr));
  EXPECT_EQ(cuEventQuery(done), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuEventQuery(also_done), CUDA_ERROR_NOT_READY);
  write(0, 1);
  CUDA_OK(cuCtxSynchronize());
}

// softgpu only: hardware runs clusters.
TEST_F(LaunchTest, ClustersAreNotSupported) {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {2, 1, 1};
  const CUlaunchConfig config{4, 1, 1, 1, 1, 1, 0, nullptr, &attribute, 1};
  EXPECT_EQ(cuLaunchKernelEx(&config, empty_, nullptr, nullptr), CUDA_ERROR_NOT_SUPPORTED);
  CUDA_OK(cuCtxSynchronize());
}

TEST_F(LaunchTest, FunctionAttributes) {
  const CUfunction with_static = function("shared");
  auto attribute = [](CUfunction_attribute which, CUfunction of) {
    int value = -7;
    EXPECT_EQ(cuFuncGetAttribute(&value, which, of), CUDA_SUCCESS) << which;
    return value;
  };
  EXPECT_EQ(attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, with_static), 1024);
  EXPECT_EQ(attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function("maxn")), 64);
  EXPECT_EQ(attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, with_static), 1024);
  EXPECT_EQ(attribute(CU_FUNC_ATTRIBUTE_PTX_VERSION, with_static), 70);
  EXPECT_EQ(attribute(CU_FUNC_ATTRIBUTE_BINARY_VERSION, with_static), 90);
  EXPECT_EQ(attribute(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, with_static), 0);
  EXPECT_EQ(attribute(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, with_static), -1);
  EXPECT_GT(attribute(CU_FUNC_ATTRIBUTE_NUM_REGS, with_static), 0);
  int value = 0;
  EXPECT_EQ(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX, empty_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuFuncGetAttribute(nullptr, CU_FUNC_ATTRIBUTE_NUM_REGS, empty_),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, nullptr),
            CUDA_ERROR_INVALID_HANDLE);

  constexpr auto kCarveout = CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
  CUDA_OK(cuFuncSetAttribute(empty_, kCarveout, 100));
  EXPECT_EQ(attribute(kCarveout, empty_), 100);
  EXPECT_EQ(cuFuncSetAttribute(empty_, kCarveout, 101), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuFuncSetAttribute(empty_, kCarveout, -2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuFuncSetAttribute(empty_, CU_FUNC_ATTRIBUTE_NUM_REGS, 1), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(LaunchTest, ParameterInfo) {
  const CUfunction f = function("many");
  const size_t expected[][2] = {{0, 1}, {8, 8}, {16, 24}, {40, 2}};
  for (size_t i = 0; i < 4; ++i) {
    size_t offset = 99, size = 99;
    CUDA_OK(cuFuncGetParamInfo(f, i, &offset, &size));
    EXPECT_EQ(offset, expected[i][0]);
    EXPECT_EQ(size, expected[i][1]);
    CUDA_OK(cuFuncGetParamInfo(f, i, &offset, nullptr));
    EXPECT_EQ(cuFuncGetParamInfo(f, i, nullptr, &size), CUDA_ERROR_INVALID_VALUE);
  }
  size_t offset = 0;
  EXPECT_EQ(cuFuncGetParamInfo(f, 4, &offset, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuFuncGetParamInfo(nullptr, 0, &offset, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(LaunchTest, Occupancy) {
  auto blocks = [](CUfunction f, int threads, size_t shared) {
    int count = -1;
    EXPECT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(&count, f, threads, shared),
              CUDA_SUCCESS);
    return count;
  };
  EXPECT_EQ(blocks(empty_, 1, 0), 32);
  EXPECT_EQ(blocks(empty_, 33, 0), 32);
  EXPECT_EQ(blocks(empty_, 96, 0), 21);
  EXPECT_EQ(blocks(empty_, 128, 0), 16);
  EXPECT_EQ(blocks(empty_, 768, 0), 2);
  EXPECT_EQ(blocks(empty_, 1024, 0), 2);
  EXPECT_EQ(blocks(empty_, 1025, 0), 0);
  EXPECT_EQ(blocks(function("maxn"), 128, 0), 16);
  EXPECT_EQ(blocks(empty_, 128, 48 * 1024), 4);
  EXPECT_EQ(blocks(empty_, 128, 48 * 1024 + 1), 0);
  CUDA_OK(cuFuncSetAttribute(empty_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 227 * 1024));
  EXPECT_EQ(blocks(empty_, 128, 227 * 1024), 1);
  EXPECT_EQ(blocks(empty_, 128, 113 * 1024), 2);
  EXPECT_EQ(blocks(empty_, 32, 10240), 20);
  EXPECT_EQ(blocks(empty_, 32, 7 * 1024), 28);
  EXPECT_EQ(blocks(empty_, 32, 6300), 31);
  int count = 0;
  EXPECT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(&count, empty_, 0, 0),
            CUDA_ERROR_INVALID_VALUE);

  int multiprocessors = 0, grid = 0, block = 0;
  CUDA_OK(
      cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device_));
  CUDA_OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, empty_, nullptr, 0, 0));
  EXPECT_EQ(block, 1024);
  EXPECT_EQ(grid, 2 * multiprocessors);
  CUDA_OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, empty_, nullptr, 0, 200));
  EXPECT_EQ(block, 128);
  EXPECT_EQ(grid, 16 * multiprocessors);
  CUDA_OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, function("maxn"), nullptr, 0, 0));
  EXPECT_EQ(block, 64);

  size_t shared = 0;
  CUDA_OK(cuOccupancyAvailableDynamicSMemPerBlock(&shared, empty_, 1, 128));
  EXPECT_EQ(shared, 227u * 1024);
  CUDA_OK(cuOccupancyAvailableDynamicSMemPerBlock(&shared, empty_, 3, 128));
  EXPECT_EQ(shared, 76u * 1024);
  CUDA_OK(cuOccupancyAvailableDynamicSMemPerBlock(&shared, add_, 1, 128));
  EXPECT_EQ(shared, 48u * 1024);
  EXPECT_EQ(cuOccupancyAvailableDynamicSMemPerBlock(&shared, empty_, 3, 1024),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(LaunchTest, OccupancyWithFlagsAndOfClusters) {
  int count = 0, grid = 0, block = 0;
  CUDA_OK(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
      &count, empty_, 128, 0, CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE));
  EXPECT_EQ(count, 16);
  EXPECT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&count, empty_, 128, 0, 99),
            CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuOccupancyMaxPotentialBlockSizeWithFlags(&grid, &block, empty_, nullptr, 0, 0,
                                                    CU_OCCUPANCY_DEFAULT));
  EXPECT_EQ(block, 1024);
}

TEST_F(LaunchTest, CachePreferencesAreTaken) {
  CUDA_OK(cuFuncSetCacheConfig(empty_, CU_FUNC_CACHE_PREFER_L1));
  EXPECT_EQ(cuFuncSetCacheConfig(empty_, static_cast<CUfunc_cache>(9)), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuFuncSetSharedMemConfig(empty_, CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE));
  CUDA_OK(empty(nullptr));
  CUDA_OK(cuCtxSynchronize());
}

TEST_F(LaunchTest, WithoutACurrentContextOnlyHandlesCanBeUsed) {
  const CUstream s = stream();
  const CUevent e = event();
  CUDA_OK(cuCtxSetCurrent(nullptr));
  EXPECT_EQ(launch(empty_, Shape{}), CUDA_ERROR_INVALID_CONTEXT);
  CUstream made = nullptr;
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  int value = 0;
  EXPECT_EQ(cuStreamCreate(&made, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, empty_, 32, 0),
            CUDA_ERROR_INVALID_CONTEXT);
  CUDA_OK(set(s, word(0), 1));
  CUDA_OK(cuMemsetD32Async(word(1), 2, 1, s));
  CUDA_OK(cuEventRecord(e, s));
  CUDA_OK(cuStreamWaitEvent(s, e, 0));
  CUDA_OK(cuEventSynchronize(e));
  CUDA_OK(cuEventQuery(e));
  CUDA_OK(cuStreamSynchronize(s));
  CUDA_OK(cuStreamQuery(s));
  CUDA_OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, empty_));
  CUDA_OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUDA_OK(set(s, word(0), 3));
  CUDA_OK(cuStreamEndCapture(s, &graph));
  EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_ERROR_INVALID_CONTEXT);
  CUDA_OK(cuEventDestroy_v2(e));
  CUDA_OK(cuStreamDestroy_v2(s));
  EXPECT_EQ(read(0), 1u);
  EXPECT_EQ(read(1), 2u);
  CUDA_OK(cuCtxSetCurrent(context_));
}

}  // namespace
}  // namespace softgpu::driver
