// Launches that are refused at once. Prints the errors, which must leave the context usable.
#include "program.h"

__global__ void store(int* out) { out[0] = threadIdx.x; }
__global__ void __launch_bounds__(64) small(int* out) { out[0] = 1; }

void expect_refusal(const char* what) {
  const cudaError_t error = cudaPeekAtLastError();
  CHECK(error != cudaSuccess);
  EXPECT(error, cudaGetLastError());
  EXPECT(cudaSuccess, cudaGetLastError());
  std::printf("%s: %s\n", what, cudaGetErrorName(error));
}

void refused(const char* what, dim3 grid, dim3 block, size_t shared, int* out) {
  store<<<grid, block, shared>>>(out);
  expect_refusal(what);
}

int main() {
  DeviceArray<int> out(1);
  refused("grid of 0", dim3(0), dim3(32), 0, out.get());
  refused("block of 0", dim3(1), dim3(0), 0, out.get());
  refused("block of 2048", dim3(1), dim3(2048), 0, out.get());
  refused("block too deep", dim3(1), dim3(1, 1, 128), 0, out.get());
  refused("block of 64 by 32", dim3(1), dim3(64, 32), 0, out.get());
  refused("grid too high", dim3(1, 65536), dim3(1), 0, out.get());
  refused("too much shared memory", dim3(1), dim3(1), 1 << 20, out.get());
  small<<<1, 65>>>(out.get());
  expect_refusal("block above the launch bounds");

  // A pointer that is not a kernel.
  void* arguments[] = {nullptr};
  static int nothing;
  CHECK(cudaLaunchKernel(&nothing, dim3(1), dim3(1), arguments, 0, nullptr) != cudaSuccess);
  expect_refusal("no kernel");
  cudaFuncAttributes attributes;
  CHECK(cudaFuncGetAttributes(&attributes, &nothing) != cudaSuccess);
  expect_refusal("attributes of no kernel");
  EXPECT(cudaErrorInvalidDevice, cudaSetDevice(1000));
  cudaGetLastError();
  EXPECT(cudaErrorInvalidValue, cudaMalloc(nullptr, 16));
  cudaGetLastError();

  // The context still works.
  store<<<1, 1>>>(out.get());
  FINISH();
  CHECK(out.values()[0] == 0);
}
