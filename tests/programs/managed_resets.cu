// Contexts end while they still have managed and mapped memory. The program continues with other
// and new contexts.
#include <cuda.h>

#include "program.h"

#define CU(call) CHECK((call) == CUDA_SUCCESS)

namespace {

constexpr int kCount = 300'001, kFew = 20;

__global__ void add(int* values, int n, int more) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    values[i] += more;
}

// Both sides change all of the memory, twice.
void use(int* values, int count, int from) {
  for (int i = 0; i < count; ++i) values[i] = from + i;
  add<<<32, 128>>>(values, count, 1);
  FINISH();
  for (int i = 0; i < count; ++i) CHECK(values[i] == from + i + 1);
  for (int i = 0; i < count; i += 7) ++values[i];
  add<<<32, 128>>>(values, count, 10);
  FINISH();
  for (int i = 0; i < count; ++i) CHECK(values[i] == from + i + 11 + (i % 7 == 0));
}

int* managed(int count) {
  int* made;
  CUDA(cudaMallocManaged(&made, count * sizeof(int)));
  return made;
}

int* page_locked(int count, unsigned flags) {
  int* made;
  CUDA(cudaHostAlloc(&made, count * sizeof(int), flags));
  return made;
}

// Uses memory of each kind, and frees none of it.
void use_all(int from) {
  use(managed(kCount), kCount, from);
  use(managed(kFew), kFew, from);
  use(page_locked(kCount, cudaHostAllocMapped), kCount, from);
  use(page_locked(kFew, cudaHostAllocDefault), kFew, from);
  // Of this memory, the device has the newest bytes.
  int* const changed = managed(kCount);
  add<<<32, 128>>>(changed, kCount, 1);
  FINISH();
}

void reset_the_device() {
  for (int round = 0; round < 4; ++round) {
    use_all(round);
    CUDA(cudaDeviceReset());
  }
  int* const values = managed(kCount);
  use(values, kCount, 0);
  CUDA(cudaFree(values));
  std::printf("a device is reset\n");
}

void destroy_contexts() {
  int* const kept = managed(kCount);
  int* const portable = page_locked(kCount, cudaHostAllocPortable);
  int* const few = page_locked(kFew, cudaHostAllocPortable);
  use(kept, kCount, 5);
  CUcontext primary;
  CU(cuCtxGetCurrent(&primary));
  for (int round = 0; round < 3; ++round) {
    CUcontext other;
    CU(cuCtxCreate(&other, nullptr, 0, 0));
    use_all(round);
    use(kept, kCount, round);
    // This context is the first in which kernels use `portable`.
    use(portable, kCount, round);
    use(few, kFew, round);
    CU(cuCtxDestroy(other));
    CU(cuCtxSetCurrent(primary));
    use(portable, kCount, round);
    use(few, kFew, round);
    use(kept, kCount, round);
  }
  CUDA(cudaFree(kept));
  CUDA(cudaFreeHost(portable));
  CUDA(cudaFreeHost(few));
  std::printf("a context is destroyed\n");
}

void release_primary() {
  CUdevice device;
  CU(cuDeviceGet(&device, 0));
  CU(cuCtxSetCurrent(nullptr));
  CU(cuDevicePrimaryCtxReset(device));
  for (int round = 0; round < 3; ++round) {
    CUcontext context;
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    CUdeviceptr values, few;
    CU(cuMemAllocManaged(&values, kCount * sizeof(int), CU_MEM_ATTACH_GLOBAL));
    CU(cuMemAllocManaged(&few, kFew * sizeof(int), CU_MEM_ATTACH_GLOBAL));
    int* const words = reinterpret_cast<int*>(values);
    for (int i = 0; i < kCount; ++i) words[i] = i;
    CU(cuMemsetD32(values + sizeof(int), 7, 1000));
    CU(cuMemsetD32(few, 3, kFew));
    CU(cuCtxSynchronize());
    for (int i = 1; i <= 1000; ++i) CHECK(words[i] == 7);
    CHECK(words[0] == 0 && words[1001] == 1001 && words[kCount - 1] == kCount - 1);
    CHECK(*reinterpret_cast<int*>(few) == 3);
    CU(cuDevicePrimaryCtxRelease(device));
  }
  std::printf("a primary context is released\n");
}

}  // namespace

int main() {
  reset_the_device();
  destroy_contexts();
  release_primary();
}
