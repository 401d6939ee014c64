// Attributes of kernels, occupancy, launches with attributes, and kernel handles.
#include <cuda.h>

#include "program.h"

__global__ void __launch_bounds__(256) bounded(int* out, double weight, char tag) {
  __shared__ double tile[64];
  tile[threadIdx.x % 64] = weight;
  __syncthreads();
  out[threadIdx.x] = static_cast<int>(tile[63 - threadIdx.x % 64]) + tag;
}

__global__ void plain(int* out) { out[blockIdx.x] = blockIdx.x; }

int main() {
  cudaFuncAttributes attributes;
  CUDA(cudaFuncGetAttributes(&attributes, bounded));
  CHECK(attributes.maxThreadsPerBlock == 256);
  CHECK(attributes.sharedSizeBytes == 64 * sizeof(double));
  CHECK(attributes.constSizeBytes == 0 && attributes.numRegs > 0 && attributes.numRegs <= 255);
  CHECK(attributes.ptxVersion >= 75);
  CUDA(cudaFuncGetAttributes(&attributes, plain));
  CHECK(attributes.maxThreadsPerBlock == 1024 && attributes.sharedSizeBytes == 0);

  int blocks = 0, grid = 0, block = 0;
  CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, plain, 256, 0));
  CHECK(blocks >= 4 && blocks <= 32);
  int fewer = 0;
  CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fewer, plain, 1024, 40000));
  CHECK(fewer >= 1 && fewer <= blocks);
  CUDA(cudaOccupancyMaxPotentialBlockSize(&grid, &block, bounded, 0, 0));
  CHECK(block > 0 && block <= 256 && block % 32 == 0 && grid > 0);
  size_t dynamic = 0;
  CUDA(cudaOccupancyAvailableDynamicSMemPerBlock(&dynamic, plain, 1, 128));
  CHECK(dynamic >= 40000);
  CUDA(cudaFuncSetCacheConfig(plain, cudaFuncCachePreferShared));

  DeviceArray<int> out(256);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(256);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributePriority;
  attribute.val.priority = 0;
  config.attrs = &attribute;
  config.numAttrs = 1;
  CUDA(cudaLaunchKernelEx(&config, bounded, out.get(), 41.5, 'a'));
  FINISH();
  CHECK(out.values()[200] == 41 + 'a');

  // The same kernel by name: its handle, parameters, and a launch through `extra`.
  cudaFunction_t function;
  CUDA(cudaGetFuncBySymbol(&function, reinterpret_cast<const void*>(bounded)));
  size_t offset, size;
  const size_t expected[3][2] = {{0, 8}, {8, 8}, {16, 1}};
  for (size_t i = 0; i < 3; ++i) {
    CHECK(cuFuncGetParamInfo(function, i, &offset, &size) == CUDA_SUCCESS);
    CHECK(offset == expected[i][0] && size == expected[i][1]);
  }
  CHECK(cuFuncGetParamInfo(function, 3, &offset, &size) == CUDA_ERROR_INVALID_VALUE);
  const char* name = nullptr;
  CHECK(cuFuncGetName(&name, function) == CUDA_SUCCESS);
  std::printf("%s\n", name);
  struct {
    int* out;
    double weight;
    char tag;
  } packed = {out.get(), 7.25, 'b'};
  size_t packed_bytes = 17;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE,
                   &packed_bytes, CU_LAUNCH_PARAM_END};
  CHECK(cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, nullptr, nullptr, extra) == CUDA_SUCCESS);
  FINISH();
  CHECK(out.values()[63] == 7 + 'b' && out.values()[64] == 41 + 'a');
  packed_bytes = 16;  // the parameters left out are 0
  CHECK(cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, nullptr, nullptr, extra) == CUDA_SUCCESS);
  FINISH();
  CHECK(out.values()[63] == 7);
  std::printf("launched by handle\n");
}
