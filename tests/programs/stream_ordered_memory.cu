// cudaMallocAsync and memory pools.
#include <cuda.h>

#include "program.h"

cudaMemPool_t pool_of(const void* memory) {
  CUmemoryPool pool = nullptr;
  CHECK(cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                              reinterpret_cast<CUdeviceptr>(memory)) == CUDA_SUCCESS);
  return pool;
}

__global__ void fill(int* values, int n, int start) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] = start + i;
}
__global__ void sum(const int* values, int n, int* total) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) atomicAdd(total, values[i]);
}

void show_reserved(const char* how) {
  cudaMemPool_t pool;
  CUDA(cudaDeviceGetDefaultMemPool(&pool, 0));
  uint64_t bytes = 0;
  CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &bytes));
  std::printf("synchronised %s: %llu reserved\n", how, static_cast<unsigned long long>(bytes));
}

int main() {
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  DeviceArray<int> total(1);
  total.clear();
  int expected = 0;
  for (int round = 0; round < 30; ++round) {
    const int n = 100 + round * 37;
    int* values;
    CUDA(cudaMallocAsync(&values, n * sizeof(int), stream));
    fill<<<(n + 63) / 64, 64, 0, stream>>>(values, n, round);
    sum<<<1, 64, 0, stream>>>(values, n, total.get());
    CUDA(cudaFreeAsync(values, stream));
    expected += n * round + n * (n - 1) / 2;
  }
  CUDA(cudaStreamSynchronize(stream));
  CHECK(total.values()[0] == expected);
  std::printf("sum %d\n", expected);

  // The next call that synchronises a stream, an event or the context releases memory beyond the
  // release threshold (by default 0).
  cudaEvent_t done;
  CUDA(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
  show_reserved("with the stream");
  for (const char* how : {"with an event", "with the device", "after a copy"}) {
    void* memory;
    CUDA(cudaMallocAsync(&memory, 8 << 20, stream));
    CUDA(cudaMemsetAsync(memory, 1, 8 << 20, stream));
    CUDA(cudaFreeAsync(memory, stream));
    CUDA(cudaEventRecord(done, stream));
    if (how[5] == 'a') {
      CUDA(cudaEventSynchronize(done));
    } else if (how[5] == 't') {
      CUDA(cudaDeviceSynchronize());
    } else {
      int value;
      CUDA(cudaMemcpyAsync(&value, total.get(), sizeof value, cudaMemcpyDeviceToHost, stream));
      CUDA(cudaStreamSynchronize(stream));
    }
    show_reserved(how);
  }
  CUDA(cudaEventDestroy(done));

  cudaMemPool_t pool;
  CUDA(cudaDeviceGetDefaultMemPool(&pool, 0));
  uint64_t value = 0;
  CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &value));
  CHECK(value == 0);
  CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &value));
  CHECK(value >= 400);
  value = ~0ull;
  CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &value));
  void* block;
  CUDA(cudaMallocAsync(&block, 4 << 20, stream));
  CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &value));
  CHECK(value >= 4 << 20);
  CHECK(pool_of(block) == pool && pool_of(total.get()) == nullptr);
  // Memory of one stream, freed in another stream after an event, or by plain cudaFree.
  cudaStream_t other;
  CUDA(cudaStreamCreate(&other));
  cudaEvent_t ready;
  CUDA(cudaEventCreate(&ready));
  CUDA(cudaMemsetAsync(block, 1, 4 << 20, stream));
  CUDA(cudaEventRecord(ready, stream));
  CUDA(cudaStreamWaitEvent(other, ready, 0));
  CUDA(cudaFreeAsync(block, other));
  CUDA(cudaStreamSynchronize(other));
  CUDA(cudaMallocAsync(&block, 1 << 20, other));
  CUDA(cudaFree(block));
  CUDA(cudaMemPoolTrimTo(pool, 0));
  CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &value));
  std::printf("reserved after trimming: %llu\n", static_cast<unsigned long long>(value));

  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = 0;
  cudaMemPool_t own;
  CUDA(cudaMemPoolCreate(&own, &properties));
  int* values;
  CUDA(cudaMallocFromPoolAsync(&values, 1000 * sizeof(int), own, stream));
  CHECK(pool_of(values) == own);
  total.clear();
  fill<<<16, 64, 0, stream>>>(values, 1000, 5);
  sum<<<1, 64, 0, stream>>>(values, 1000, total.get());
  CUDA(cudaFreeAsync(values, stream));
  CUDA(cudaStreamSynchronize(stream));
  CHECK(total.values()[0] == 1000 * 5 + 1000 * 999 / 2);
  CUDA(cudaMemPoolDestroy(own));
  CUDA(cudaStreamDestroy(stream));
  CUDA(cudaStreamDestroy(other));
  CUDA(cudaEventDestroy(ready));
  std::printf("own pool\n");
}
