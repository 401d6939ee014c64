// extern __shared__ memory of several types, next to static arrays, and beyond 48 KB by opting in.
#include "program.h"

extern __shared__ unsigned char bytes[];

__global__ void reverse(const int* in, int* out, int n) {
  __shared__ int fixed[32];
  int* values = reinterpret_cast<int*>(bytes);
  for (int i = threadIdx.x; i < n; i += blockDim.x) values[i] = in[blockIdx.x * n + i];
  if (threadIdx.x < 32) fixed[threadIdx.x] = blockIdx.x * 1000 + threadIdx.x;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    out[blockIdx.x * n + i] = values[n - 1 - i] + fixed[i % 32];
  }
}

int main() {
  const int blocks = 3;
  for (const int n : {10, 1000, 12000}) {  // 12000 ints with the static part: 48128 bytes
    const size_t shared_bytes = n * sizeof(int);
    std::vector<int> in(blocks * n), expected(blocks * n);
    for (int i = 0; i < blocks * n; ++i) in[i] = i * 3;
    DeviceArray<int> device_in(in), device_out(in.size());
    reverse<<<blocks, 128, shared_bytes>>>(device_in.get(), device_out.get(), n);
    FINISH();
    const std::vector<int> out = device_out.values();
    for (int b = 0; b < blocks; ++b) {
      for (int i = 0; i < n; ++i) {
        CHECK(out[b * n + i] == in[b * n + n - 1 - i] + b * 1000 + i % 32);
      }
    }
    print_digest("reversed", out);
  }

  // 60 KB need permission.
  const int n = 15000;
  DeviceArray<int> in(n), out(n);
  in.clear();
  reverse<<<1, 128, n * sizeof(int)>>>(in.get(), out.get(), n);
  EXPECT(cudaErrorInvalidValue, cudaGetLastError());
  cudaFuncAttributes attributes;
  CUDA(cudaFuncGetAttributes(&attributes, reverse));
  CHECK(attributes.sharedSizeBytes == 32 * sizeof(int));
  CHECK(attributes.maxDynamicSharedSizeBytes == 48 * 1024 - 32 * sizeof(int));
  CUDA(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, n * sizeof(int)));
  reverse<<<1, 128, n * sizeof(int)>>>(in.get(), out.get(), n);
  FINISH();
  print_digest("60 KB", out.values());
}
