// A program of several translation units (-rdc=true): device functions, variables, constants and
// function pointers of other units.
#include "separate_compilation/parts.h"

__device__ int own = 5;

__global__ void combine(int* out, int n) {
  const int i = threadIdx.x;
  if (i >= n) return;
  out[i] = scale(i) + offsets[i % 4] + own + apply(i % 2, i) + static_cast<int>(factors[i % 3] * 2);
  atomicAdd(&visits, 1);
}

int main() {
  const int n = 50;
  DeviceArray<int> out(n);
  for (int round = 1; round <= 2; ++round) {
    combine<<<1, 64>>>(out.get(), n);
    FINISH();
    print_digest("combined", out.values());
    run_other_kernel();
    int count = 0;
    CUDA(cudaMemcpyFromSymbol(&count, visits, sizeof count));
    CHECK(count == round * (n + 32));
    const int value = 11;
    CUDA(cudaMemcpyToSymbol(offsets, &value, sizeof value, sizeof(int)));
  }
  std::printf("%d %d\n", out.values()[1], out.values()[49]);
}
