// Managed memory with all the hints that programs give: prefetches, advice, attachment to streams.
#include "program.h"

__managed__ int variable = 3;

__global__ void add(int* values, int n, int more) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] += more;
}

int main() {
  const int n = 10000;
  const size_t bytes = n * sizeof(int);
  int *values, *local;
  CUDA(cudaMallocManaged(&values, bytes));
  CUDA(cudaMallocManaged(&local, bytes, cudaMemAttachHost));
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  const cudaMemLocation device = {cudaMemLocationTypeDevice, 0},
                        host = {cudaMemLocationTypeHost, 0};
  for (int i = 0; i < n; ++i) values[i] = i;

  // There and back.
  for (int round = 0; round < 3; ++round) {
    CUDA(cudaMemPrefetchAsync(values, bytes, device, 0, stream));
    add<<<(n + 255) / 256, 256, 0, stream>>>(values, n, 1);
    CUDA(cudaMemPrefetchAsync(values, bytes, host, 0, stream));
    CUDA(cudaMemPrefetchAsync(values + 100, 4096, device, 0, nullptr));
    CUDA(cudaStreamSynchronize(stream));
    CHECK(values[0] == round + 1 && values[n - 1] == n + round);
  }
  CUDA(cudaDeviceSynchronize());
  std::printf("prefetched %d\n", values[n - 1]);

  // Advice, and the attributes that report it.
  int read_mostly = -1, preferred = -1, last = -1, accessed[2] = {-1, -1};
  CUDA(cudaMemAdvise(values, bytes, cudaMemAdviseSetReadMostly, device));
  CUDA(cudaMemRangeGetAttribute(&read_mostly, sizeof(int), cudaMemRangeAttributeReadMostly, values,
                                bytes));
  CUDA(cudaMemAdvise(values, bytes, cudaMemAdviseUnsetReadMostly, device));
  CUDA(cudaMemAdvise(values, bytes, cudaMemAdviseSetPreferredLocation, device));
  CUDA(cudaMemAdvise(values, bytes, cudaMemAdviseSetAccessedBy, device));
  CUDA(cudaMemRangeGetAttribute(&preferred, sizeof(int), cudaMemRangeAttributePreferredLocation,
                                values, bytes));
  CUDA(cudaMemRangeGetAttribute(accessed, sizeof accessed, cudaMemRangeAttributeAccessedBy, values,
                                bytes));
  CUDA(cudaMemPrefetchAsync(values, bytes, device, 0, stream));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaMemRangeGetAttribute(&last, sizeof(int), cudaMemRangeAttributeLastPrefetchLocation,
                                values, bytes));
  std::printf("read mostly %d, preferred %d, accessed by %d and %d, last %d\n", read_mostly,
              preferred, accessed[0], accessed[1] == cudaInvalidDeviceId, last);
  add<<<(n + 255) / 256, 256, 0, stream>>>(values, n, 10);
  CUDA(cudaStreamSynchronize(stream));
  std::printf("added %d\n", values[5]);

  // Attached to one stream, then to all.
  CUDA(cudaStreamAttachMemAsync(stream, local, 0, cudaMemAttachSingle));
  CUDA(cudaStreamSynchronize(stream));
  for (int i = 0; i < n; ++i) local[i] = -i;
  add<<<(n + 255) / 256, 256, 0, stream>>>(local, n, 7);
  CUDA(cudaStreamSynchronize(stream));
  std::printf("attached %d\n", local[n - 1]);
  CUDA(cudaStreamAttachMemAsync(stream, local, 0, cudaMemAttachGlobal));
  CUDA(cudaStreamSynchronize(stream));

  // A variable.
  variable = 10;
  CUDA(cudaMemPrefetchAsync(&variable, sizeof variable, device, 0, nullptr));
  add<<<1, 1>>>(&variable, 1, 5);
  CUDA(cudaDeviceSynchronize());
  std::printf("variable %d\n", variable);

  // Calls that are refused at once and have no effect.
  EXPECT(cudaErrorInvalidValue, cudaMemPrefetchAsync(values, 0, device, 0, stream));
  EXPECT(cudaErrorInvalidDevice,
         cudaMemPrefetchAsync(values, bytes, {cudaMemLocationTypeDevice, 99}, 0, stream));
  EXPECT(cudaErrorInvalidValue, cudaStreamAttachMemAsync(nullptr, local, 0, cudaMemAttachSingle));
  DeviceArray<int> plain(10);
  EXPECT(cudaErrorInvalidValue,
         cudaMemPrefetchAsync(plain.get(), plain.bytes(), device, 0, stream));
  EXPECT(cudaErrorInvalidValue,
         cudaMemAdvise(plain.get(), plain.bytes(), cudaMemAdviseSetReadMostly, device));
  EXPECT(cudaErrorInvalidValue, cudaFreeHost(values));
  EXPECT(cudaErrorInvalidValue, cudaGetLastError());
  CUDA(cudaDeviceSynchronize());
  CUDA(cudaGetLastError());
  CUDA(cudaFree(values));
  CUDA(cudaFree(local));
  std::printf("refused\n");
}
