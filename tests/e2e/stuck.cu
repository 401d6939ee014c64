// A call that blocks in the driver because a kernel runs forever. In softgpu, cuMemUnmap blocks.
#include <cstdio>
#include <cstdlib>

#include <cuda.h>
#include <cuda_runtime.h>

__global__ void wait_for(const volatile int* flag) {
  while (*flag == 0) {
  }
}

static void check(int error) {
  if (error != 0) std::exit(3);
}

int main() {
  int* flag;
  check(cudaMalloc(&flag, sizeof *flag));
  check(cudaMemset(flag, 0, sizeof *flag));
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  size_t bytes;
  check(cuMemGetAllocationGranularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CUmemGenericAllocationHandle memory;
  CUdeviceptr address;
  check(cuMemCreate(&memory, bytes, &properties, 0));
  check(cuMemAddressReserve(&address, bytes, 0, 0, 0));
  check(cuMemMap(address, bytes, 0, memory, 0));
  wait_for<<<1, 1>>>(flag);
  check(cudaGetLastError());
  std::printf("running\n");
  std::fflush(stdout);
  cuMemUnmap(address, bytes);
  return 4;  // the call returned
}
