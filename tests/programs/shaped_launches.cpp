// The launch interface of CUDA 3: a function has its block shape and parameters as state. Also one
// kernel on several devices in one call.
#include <cstdio>
#include <initializer_list>
#include <vector>

#include <cuda.h>

#include "driver_checks.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

// Writes both values, the block's width and the grid's height.
const char kCode[] = R"(
.version 6.3
.target sm_75
.address_size 64
.visible .entry store(.param .u64 pointer, .param .u32 number, .param .f32 real) {
  .reg .b64 %address;
  .reg .b32 %value;
  .reg .f32 %real;
  ld.param.u64 %address, [pointer];
  cvta.to.global.u64 %address, %address;
  ld.param.u32 %value, [number];
  ld.param.f32 %real, [real];
  st.global.u32 [%address], %value;
  st.global.f32 [%address+4], %real;
  mov.u32 %value, %ntid.x;
  st.global.u32 [%address+8], %value;
  mov.u32 %value, %nctaid.y;
  st.global.u32 [%address+12], %value;
  ret;
}
.visible .entry empty() { ret; }
)";

struct Stored {
  unsigned number;
  float real;
  unsigned width, height;
};

struct Kernel {
  CUmodule module;
  CUfunction store, empty;
  CUdeviceptr memory;

  Kernel() {
    CU(cuModuleLoadData(&module, kCode));
    CU(cuModuleGetFunction(&store, module, "store"));
    CU(cuModuleGetFunction(&empty, module, "empty"));
    CU(cuMemAlloc(&memory, sizeof(Stored)));
  }
  void print(const char* title) const {
    Stored stored;
    CU(cuMemcpyDtoH(&stored, memory, sizeof stored));
    std::printf("%s: %u %g, block of %u, grid of %u\n", title, stored.number,
                static_cast<double>(stored.real), stored.width, stored.height);
  }
};

void launches(const Kernel& kernel) {
  const CUfunction store = kernel.store;
  CU(cuLaunch(kernel.empty));  // without a shape: one thread
  CUdeviceptr memory = kernel.memory;
  CU(cuFuncSetBlockShape(store, 32, 2, 1));
  CU(cuFuncSetSharedSize(store, 1024));
  CU(cuParamSetv(store, 0, &memory, sizeof memory));
  CU(cuParamSeti(store, 8, 77));
  CU(cuParamSetf(store, 12, 2.5f));
  CU(cuParamSetSize(store, 16));
  CU(cuLaunch(store));
  kernel.print("launch");
  CU(cuFuncSetBlockShape(store, 64, 1, 1));
  CU(cuParamSeti(store, 8, 78));
  CU(cuLaunchGrid(store, 2, 3));
  kernel.print("grid");
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuLaunchGridAsync(store, 1, 5, stream));
  CU(cuStreamSynchronize(stream));
  CU(cuStreamDestroy(stream));
  kernel.print("stream");
  // With a smaller size, the parameters beyond it are zero, but their values are kept.
  CU(cuParamSetSize(store, 12));
  CU(cuLaunch(store));
  kernel.print("twelve bytes");
  CU(cuParamSetSize(store, 16));
  CU(cuLaunch(store));
  kernel.print("sixteen bytes");
}

void refused(const Kernel& kernel) {
  const CUfunction store = kernel.store;
  const int shapes[][3] = {{0, 1, 1}, {-1, 1, 1}, {2048, 1, 1}, {1024, 2, 1}, {1, 1, 65}};
  for (const int(&shape)[3] : shapes) {
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuFuncSetBlockShape(store, shape[0], shape[1], shape[2]));
  }
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuFuncSetBlockShape(nullptr, 1, 1, 1));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuFuncSetSharedSize(store, 49153));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuFuncSetSharedSize(nullptr, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchGrid(store, 0, 1));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchGrid(store, -1, 1));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchGrid(store, 1, 65536));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuLaunchGrid(nullptr, 1, 1));
  CU(cuParamSetSize(store, 20));
  EXPECT(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, cuLaunch(store));
  CU(cuParamSetSize(store, 4096));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuParamSetSize(store, 65536));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuParamSetSize(nullptr, 16));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuParamSeti(store, 32764, 1));
  CU(cuParamSeti(store, 32760, 1));
  CU(cuParamSetSize(store, 16));
  kernel.print("refused");
  CU(cuCtxSetCurrent(nullptr));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuFuncSetBlockShape(store, 1, 1, 1));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuParamSetSize(store, 16));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuLaunch(store));
}

// One kernel on each device, in one call. A driver supports this for devices that reach each other.
void all_devices() {
  int count = 0;
  CU(cuDeviceGetCount(&count));
  bool reach_each_other = true;
  std::vector<CUDA_LAUNCH_PARAMS> launches;
  std::vector<std::vector<void*>> parameters(static_cast<size_t>(count));
  std::vector<CUdeviceptr> memory(static_cast<size_t>(count));
  std::vector<unsigned> numbers(static_cast<size_t>(count));
  float real = 0.25f;
  for (int i = 0; i < count; ++i) {
    const auto index = static_cast<size_t>(i);
    int reaches = 1;
    if (i > 0) CU(cuDeviceCanAccessPeer(&reaches, 0, i));
    reach_each_other = reach_each_other && reaches;
    CUcontext context;
    CU(cuDevicePrimaryCtxRetain(&context, i));
    CU(cuCtxSetCurrent(context));
    const Kernel kernel;
    memory[index] = kernel.memory;
    numbers[index] = 100u + static_cast<unsigned>(i);
    parameters[index] = {&memory[index], &numbers[index], &real};
    CUstream stream;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    launches.push_back(
        {kernel.store, 1, 1, 1, 1, 1, 1, 0, stream, parameters[index].data()});
  }
  const CUresult result = cuLaunchCooperativeKernelMultiDevice(
      launches.data(), static_cast<unsigned>(launches.size()), 0);
  CHECK(result == CUDA_SUCCESS || (!reach_each_other && result == CUDA_ERROR_NOT_SUPPORTED));
  for (size_t i = 0; i < launches.size() && result == CUDA_SUCCESS; ++i) {
    CU(cuStreamSynchronize(launches[i].hStream));
    CU(cuStreamQuery(launches[i].hStream));
    unsigned number = 0;
    CU(cuMemcpyDtoH(&number, memory[i], sizeof number));
    CHECK(number == numbers[i]);
  }
  for (const CUDA_LAUNCH_PARAMS& launch : launches) CU(cuStreamDestroy(launch.hStream));
  for (int i = 1; i < count; ++i) CU(cuDevicePrimaryCtxRelease(i));
  CU(cuDevicePrimaryCtxRelease(0));
  std::printf("all devices\n");
}

void several_devices(const Kernel& kernel) {
  CUstream stream;
  CU(cuStreamCreate(&stream, 0));
  CUdeviceptr memory = kernel.memory;
  unsigned number = 9;
  float real = 1.25f;
  void* parameters[] = {&memory, &number, &real};
  CUDA_LAUNCH_PARAMS launch{kernel.store, 1, 2, 1, 32, 1, 1, 0, stream, parameters};
  CU(cuLaunchCooperativeKernelMultiDevice(&launch, 1, 0));
  CU(cuStreamSynchronize(stream));
  kernel.print("several devices");
  constexpr unsigned kNoSync = CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC |
                               CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC;
  number = 10;
  CU(cuLaunchCooperativeKernelMultiDevice(&launch, 1, kNoSync));
  CU(cuStreamSynchronize(stream));
  kernel.print("without waiting");
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchCooperativeKernelMultiDevice(&launch, 1, 4));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchCooperativeKernelMultiDevice(&launch, 0, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchCooperativeKernelMultiDevice(nullptr, 1, 0));
  std::vector<CUDA_LAUNCH_PARAMS> many(1000, launch);
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchCooperativeKernelMultiDevice(many.data(), 1000, 0));
  for (CUstream own : {CUstream(nullptr), CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    launch.hStream = own;
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuLaunchCooperativeKernelMultiDevice(&launch, 1, 0));
  }
  launch.hStream = stream;
  launch.gridDimY = 60000;
  EXPECT(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
         cuLaunchCooperativeKernelMultiDevice(&launch, 1, 0));
  launch.gridDimY = 0;
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchCooperativeKernelMultiDevice(&launch, 1, 0));
  launch.gridDimY = 1;
  launch.kernelParams = nullptr;
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchCooperativeKernelMultiDevice(&launch, 1, 0));
  launch.kernelParams = parameters;
  launch.function = nullptr;
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuLaunchCooperativeKernelMultiDevice(&launch, 1, 0));
  launch.function = kernel.store;
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         cuLaunchCooperativeKernelMultiDevice(&launch, 1, 0));
  CUgraph graph;
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
  CU(cuStreamDestroy(stream));
}

}  // namespace

int main() {
  CUcontext context;
  CU(cuInit(0));
  CU(cuDevicePrimaryCtxRetain(&context, 0));
  CU(cuCtxSetCurrent(context));
  const Kernel kernel;
  launches(kernel);
  several_devices(kernel);
  refused(kernel);
  all_devices();
  CU(cuDevicePrimaryCtxRelease(0));
  return 0;
}
