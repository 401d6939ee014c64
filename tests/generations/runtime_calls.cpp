// A program of one generation of the CUDA runtime: kernels and their attributes, variables, memory,
// streams, graphs. Exits with 0 if every check held.

#include <cstdio>

#include "tests/generations/checks.h"

namespace {

void test_device() {
  int devices = 0, driver = 0, runtime = 0;
  CUDA(cudaGetDeviceCount(&devices));
  CHECK(devices >= 1);
  CUDA(cudaDriverGetVersion(&driver));
  CUDA(cudaRuntimeGetVersion(&runtime));
  CHECK(runtime == CUDART_VERSION && driver / 1000 >= runtime / 1000);
  cudaDeviceProp properties;
  CUDA(cudaGetDeviceProperties(&properties, 0));
  int major = 0, warp = 0;
  CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  CUDA(cudaDeviceGetAttribute(&warp, cudaDevAttrWarpSize, 0));
  CHECK(properties.major == major && properties.warpSize == warp);
  CHECK(properties.totalGlobalMem > 0 && properties.multiProcessorCount > 0);
  EXPECT(cudaErrorInvalidDevice, cudaSetDevice(devices));
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice && cudaGetLastError() == cudaSuccess);
  std::printf("device: ok\n");
}

}  // namespace

int main() {
  test_device();
  test_kernels();
  test_memory();
  test_streams();
  test_graphs();
  CUDA(cudaDeviceReset());
  test_kernels();  // in a new context, into which the module is loaded again
  return 0;
}
