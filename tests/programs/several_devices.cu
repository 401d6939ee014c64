// All devices: their memory, streams and constants; peer queries and copies. With one device, the
// copies stay on it. The output does not depend on the number of devices.
#include "program.h"

__constant__ int who;

__global__ void mark(int* values, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] = values[i] * 2 + who;
}

int main() {
  int devices = 0;
  CUDA(cudaGetDeviceCount(&devices));
  CHECK(devices >= 1);
  const int n = 10000;
  std::vector<int*> memory(devices);
  std::vector<cudaStream_t> streams(devices);
  std::vector<int> start(n);
  for (int i = 0; i < n; ++i) start[i] = i;
  for (int d = 0; d < devices; ++d) {
    CUDA(cudaSetDevice(d));
    int current = -1;
    CUDA(cudaGetDevice(&current));
    CHECK(current == d);
    CUDA(cudaMalloc(&memory[d], n * sizeof(int)));
    CUDA(cudaStreamCreate(&streams[d]));
    const int id = 100 + d;
    CUDA(cudaMemcpyToSymbol(who, &id, sizeof id));
    CUDA(cudaMemcpyAsync(memory[d], start.data(), n * sizeof(int), cudaMemcpyHostToDevice,
                         streams[d]));
    mark<<<(n + 255) / 256, 256, 0, streams[d]>>>(memory[d], n);
    CUDA(cudaGetLastError());
  }
  for (int d = 0; d < devices; ++d) {
    CUDA(cudaStreamSynchronize(streams[d]));
    cudaPointerAttributes attributes;
    CUDA(cudaPointerGetAttributes(&attributes, memory[d]));
    CHECK(attributes.device == d);
    std::vector<int> values(n);
    CUDA(cudaMemcpy(values.data(), memory[d], n * sizeof(int), cudaMemcpyDefault));
    for (int i = 0; i < n; ++i) CHECK(values[i] == 2 * i + 100 + d);
  }

  // From each device to the next, three ways.
  for (int d = 0; d < devices; ++d) {
    const int next = (d + 1) % devices;
    int accessible = -1;
    CUDA(cudaDeviceCanAccessPeer(&accessible, d, next));
    CHECK(d != next || accessible == 0);
    int* target;
    CUDA(cudaSetDevice(next));
    CUDA(cudaMalloc(&target, n * sizeof(int)));
    const auto check = [&] {
      CUDA(cudaDeviceSynchronize());
      std::vector<int> values(n);
      CUDA(cudaMemcpy(values.data(), target, n * sizeof(int), cudaMemcpyDeviceToHost));
      for (int i = 0; i < n; ++i) CHECK(values[i] == 2 * i + 100 + d);
      CUDA(cudaMemset(target, 0xff, n * sizeof(int)));
      CUDA(cudaDeviceSynchronize());
    };
    CUDA(cudaMemcpyPeer(target, next, memory[d], d, n * sizeof(int)));
    check();
    CUDA(cudaMemcpyPeerAsync(target, next, memory[d], d, n * sizeof(int), streams[next]));
    check();
    CUDA(cudaMemcpy(target, memory[d], n * sizeof(int), cudaMemcpyDefault));
    check();
    if (accessible == 1) {
      CUDA(cudaDeviceEnablePeerAccess(d, 0));
      EXPECT(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(d, 0));
      cudaGetLastError();
      CUDA(cudaMemcpyPeer(target, next, memory[d], d, n * sizeof(int)));
      check();
      mark<<<1, 1>>>(memory[d], 0);  // a kernel here that could reach the memory there
      FINISH();
      CUDA(cudaDeviceDisablePeerAccess(d));
    }
    CUDA(cudaFree(target));
  }

  // An event of one device holds a stream of another device.
  cudaEvent_t event;
  CUDA(cudaSetDevice(0));
  CUDA(cudaEventCreate(&event));
  mark<<<(n + 255) / 256, 256, 0, streams[0]>>>(memory[0], n);
  CUDA(cudaEventRecord(event, streams[0]));
  CUDA(cudaSetDevice(devices - 1));
  CUDA(cudaStreamWaitEvent(streams[devices - 1], event, 0));
  std::vector<int> values(n);
  CUDA(cudaMemcpyAsync(values.data(), memory[0], n * sizeof(int), cudaMemcpyDefault,
                       streams[devices - 1]));
  CUDA(cudaStreamSynchronize(streams[devices - 1]));
  for (int i = 0; i < n; ++i) CHECK(values[i] == 2 * (2 * i + 100) + 100);
  print_digest("values", values);
  // Work in a stream of a device that is not current. The memory belongs to the stream's device.
  CUDA(cudaSetDevice(0));
  const cudaStream_t last = streams[devices - 1];
  int* pooled;
  CUDA(cudaMallocAsync(&pooled, n * sizeof(int), last));
  cudaPointerAttributes attributes;
  CUDA(cudaPointerGetAttributes(&attributes, pooled));
  CHECK(attributes.device == devices - 1);
  CUDA(cudaMemsetAsync(pooled, 1, n * sizeof(int), last));
  bool called = false;
  CUDA(cudaLaunchHostFunc(
      last, [](void* flag) { *static_cast<bool*>(flag) = true; }, &called));
  // A driver refuses a copy from a pool's memory while a device that cannot access it is current.
  CUDA(cudaSetDevice(devices - 1));
  CUDA(cudaMemcpyAsync(values.data(), pooled, n * sizeof(int), cudaMemcpyDeviceToHost, last));
  CUDA(cudaSetDevice(0));
  CUDA(cudaStreamSynchronize(last));
  CHECK(called);
  for (int i = 0; i < n; ++i) CHECK(values[i] == 0x01010101);
  CUDA(cudaFreeAsync(pooled, last));
  CUDA(cudaStreamSynchronize(last));
  CUDA(cudaEventDestroy(event));
  for (int d = 0; d < devices; ++d) {
    CUDA(cudaSetDevice(d));
    CUDA(cudaStreamDestroy(streams[d]));
    CUDA(cudaFree(memory[d]));
  }
}
