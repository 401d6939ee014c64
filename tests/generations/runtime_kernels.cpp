// Launches, attributes of kernels, and variables.

#include <numeric>
#include <string_view>
#include <vector>

#include "tests/generations/checks.h"
#include "tests/generations/registration.h"

namespace {

void attributes() {
  cudaFuncAttributes found;
  CUDA(cudaFuncGetAttributes(&found, address(bounded)));
  std::printf("bounded: at most %d threads, %zu bytes of shared memory\n", found.maxThreadsPerBlock,
              found.sharedSizeBytes);
  CUDA(cudaFuncGetAttributes(&found, address(sum_blocks)));
  CHECK(found.maxDynamicSharedSizeBytes >= 48 << 10);
  CUDA(cudaFuncSetAttribute(address(sum_blocks), cudaFuncAttributeMaxDynamicSharedMemorySize,
                            60 << 10));
  CUDA(cudaFuncGetAttributes(&found, address(sum_blocks)));
  CHECK(found.maxDynamicSharedSizeBytes == 60 << 10);
  CUDA(cudaFuncSetCacheConfig(address(sum_blocks), cudaFuncCachePreferShared));
  int blocks = 0;
  CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, address(bounded), 128, 0));
  CHECK(blocks >= 1);
#if CUDART_VERSION >= 12080
  const cudaError_t no_kernel = cudaErrorInvalidResourceHandle;
#else
  const cudaError_t no_kernel = cudaErrorInvalidDeviceFunction;
#endif
  EXPECT(no_kernel, cudaFuncGetAttributes(&found, &blocks));
  CHECK(cudaGetLastError() == no_kernel);
#if CUDART_VERSION >= 12040
  size_t offset = 0, bytes = 0;
  EXPECT(needs_driver(12040), cudaFuncGetParamInfo(address(scale), 1, &offset, &bytes));
  CHECK(has_driver(12040) ? offset == 8 && bytes == 4
                          : cudaGetLastError() == cudaErrorCallRequiresNewerDriver);
#endif
#if CUDART_VERSION >= 12030
  const char* name = nullptr;
  CUDA(cudaFuncGetName(&name, address(scale)));
  CHECK(std::string_view(name) == "scale");
#endif
}

void launches() {
  constexpr int kCount = 1000;
  std::vector<float> a(kCount), b(kCount, 0.5f), sum(kCount);
  std::iota(a.begin(), a.end(), 0.0f);
  float *device_a, *device_b, *device_sum;
  for (float** pointer : {&device_a, &device_b, &device_sum}) {
    CUDA(cudaMalloc(reinterpret_cast<void**>(pointer), kCount * sizeof(float)));
  }
  CUDA(cudaMemcpy(device_a, a.data(), kCount * sizeof(float), cudaMemcpyHostToDevice));
  CUDA(cudaMemcpy(device_b, b.data(), kCount * sizeof(float), cudaMemcpyHostToDevice));
  CUDA(launch(add, 8, 128, 0, nullptr, device_a, device_b, device_sum, kCount));
  const float values[4] = {1, 2, 4, 8};
  CUDA(cudaMemcpyToSymbol(static_cast<const void*>(factors), values, sizeof values, 0,
                          cudaMemcpyHostToDevice));
  CUDA(launch(scale, 8, 128, 0, nullptr, device_sum, kCount));
  CUDA(cudaMemcpy(sum.data(), device_sum, kCount * sizeof(float), cudaMemcpyDeviceToHost));
  for (int i = 0; i < kCount; ++i) CHECK(sum[i] == (static_cast<float>(i) + 0.5f) * values[i & 3]);
#if CUDART_VERSION >= 13000
  const cudaError_t too_large = cudaErrorInvalidValue;
#else
  const cudaError_t too_large = cudaErrorInvalidConfiguration;
#endif
  EXPECT(too_large, launch(scale, 1, 2048, 0, nullptr, device_sum, kCount));
  CHECK(cudaGetLastError() == too_large);
  for (float* pointer : {device_a, device_b, device_sum}) CUDA(cudaFree(pointer));

  constexpr int kBlocks = 16, kThreads = 256;
  std::vector<int> numbers(kBlocks * kThreads), sums(kBlocks);
  std::iota(numbers.begin(), numbers.end(), 0);
  int *device_numbers, *device_sums;
  CUDA(cudaMalloc(reinterpret_cast<void**>(&device_numbers), numbers.size() * sizeof(int)));
  CUDA(cudaMalloc(reinterpret_cast<void**>(&device_sums), sums.size() * sizeof(int)));
  CUDA(cudaMemcpy(device_numbers, numbers.data(), numbers.size() * sizeof(int),
                  cudaMemcpyHostToDevice));
  CUDA(launch(sum_blocks, kBlocks, kThreads, kThreads * sizeof(int), nullptr,
              static_cast<const int*>(device_numbers), device_sums));
  CUDA(cudaMemcpy(sums.data(), device_sums, sums.size() * sizeof(int), cudaMemcpyDeviceToHost));
  std::printf("sums: %d ... %d\n", sums.front(), sums.back());

  void* arguments[] = {&device_sums};
  CUDA(cudaLaunchCooperativeKernel(address(exchange), kBlocks, 32, arguments, 0, nullptr));
  CUDA(cudaMemcpy(sums.data(), device_sums, sums.size() * sizeof(int), cudaMemcpyDeviceToHost));
  std::printf("neighbours: %d ... %d\n", sums.front(), sums.back());

  cudaLaunchConfig_t config{};
  config.gridDim = 1;
  config.blockDim = 96;
  CUDA(cudaLaunchKernelExC(&config, address(bounded), arguments));
  CUDA(cudaMemcpy(sums.data(), device_sums, sizeof(int), cudaMemcpyDeviceToHost));
  std::printf("bounded: %d threads\n", sums.front());
  CUDA(cudaFree(device_numbers));
  CUDA(cudaFree(device_sums));
}

void variables() {
  int count = 0;
  CUDA(cudaMemcpyToSymbol(static_cast<const void*>(&counter), &count, sizeof count, 0,
                          cudaMemcpyHostToDevice));
  CUDA(launch(count_threads, 3, 100, 0, nullptr));
  CUDA(cudaMemcpyFromSymbol(&count, static_cast<const void*>(&counter), sizeof count, 0,
                            cudaMemcpyDeviceToHost));
  std::printf("counter: %d\n", count);
  size_t bytes = 0;
  void* where = nullptr;
  CUDA(cudaGetSymbolSize(&bytes, static_cast<const void*>(table)));
  CUDA(cudaGetSymbolAddress(&where, static_cast<const void*>(table)));
  CHECK(bytes == sizeof table);
  CUDA(launch(fill_table, 1, 256, 0, nullptr, 0.5f));
  float values[256];
  CUDA(cudaMemcpy(values, where, sizeof values, cudaMemcpyDeviceToHost));
  CHECK(values[0] == 0.5f && values[255] == 255.5f);
  CUDA(
      cudaMemcpyFromSymbol(values, static_cast<const void*>(table), 8, 16, cudaMemcpyDeviceToHost));
  CHECK(values[0] == 4.5f && values[1] == 5.5f);
  *managed_value = 40;
  CUDA(launch(add_to_managed, 1, 1, 0, nullptr, 2));
  CUDA(cudaDeviceSynchronize());
  std::printf("managed: %d\n", *managed_value);
  EXPECT(cudaErrorInvalidSymbol, cudaGetSymbolSize(&bytes, &count));
  CHECK(cudaGetLastError() == cudaErrorInvalidSymbol);
}

}  // namespace

void test_kernels() {
  attributes();
  launches();
  variables();
  CUDA(cudaGetLastError());
}
