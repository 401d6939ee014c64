// Launches that are refused at once, with which error, and that nothing of it stays.
#include "program.h"

__global__ void store(int* out) { out[0] = threadIdx.x; }
__global__ void __launch_bounds__(64) small(int* out) { out[0] = 1; }

void refused(cudaError_t expected, dim3 grid, dim3 block, size_t shared, int* out) {
  store<<<grid, block, shared>>>(out);
  const cudaError_t error = cudaPeekAtLastError();
  EXPECT(expected, error);
  EXPECT(expected, cudaGetLastError());
  EXPECT(cudaSuccess, cudaGetLastError());
  std::printf("%s\n", cudaGetErrorName(error));
}

int main() {
  DeviceArray<int> out(1);
  refused(cudaErrorInvalidConfiguration, dim3(0), dim3(32), 0, out.get());
  refused(cudaErrorInvalidConfiguration, dim3(1), dim3(0), 0, out.get());
  refused(cudaErrorInvalidConfiguration, dim3(1), dim3(2048), 0, out.get());
  refused(cudaErrorInvalidConfiguration, dim3(1), dim3(1, 1, 128), 0, out.get());
  refused(cudaErrorInvalidConfiguration, dim3(1), dim3(64, 32), 0, out.get());
  refused(cudaErrorInvalidConfiguration, dim3(1, 65536), dim3(1), 0, out.get());
  refused(cudaErrorInvalidValue, dim3(1), dim3(1), 1 << 20, out.get());
  small<<<1, 65>>>(out.get());
  EXPECT(cudaErrorInvalidValue, cudaGetLastError());

  // Something that is no kernel.
  void* arguments[] = {nullptr};
  static int nothing;
  EXPECT(cudaErrorInvalidDeviceFunction, cudaLaunchKernel(&nothing, dim3(1), dim3(1), arguments, 0, nullptr));
  EXPECT(cudaErrorInvalidDeviceFunction, cudaGetLastError());
  cudaFuncAttributes attributes;
  EXPECT(cudaErrorInvalidDeviceFunction, cudaFuncGetAttributes(&attributes, &nothing));
  cudaGetLastError();
  EXPECT(cudaErrorInvalidDevice, cudaSetDevice(1000));
  cudaGetLastError();
  EXPECT(cudaErrorInvalidValue, cudaMalloc(nullptr, 16));
  cudaGetLastError();

  // The context is as good as new.
  store<<<1, 1>>>(out.get());
  FINISH();
  CHECK(out.values()[0] == 0);
}
