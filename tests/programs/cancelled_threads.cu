// Threads are cancelled during calls of many kinds. Each thread ends as cancelled, after the call
// or at its next cancellation point, and the process continues to use CUDA.
#include <cstring>

#include <pthread.h>
#include <unistd.h>

#include "program.h"

namespace {

constexpr int kCount = 1 << 14;     // few threads, for GPUs in software
constexpr size_t kBytes = 1 << 20;  // enough that copies of pageable memory are staged

__global__ void add_one(int* values) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) values[i] += 1;
}

struct Resources {
  int* device;
  int* locked;
  cudaStream_t stream;
  cudaEvent_t event;
};
Resources shared;
char pageable[kBytes];

void launch() {
  for (int i = 0; i < 50; ++i) {
    add_one<<<kCount / 256, 256, 0, shared.stream>>>(shared.device);
    CUDA(cudaGetLastError());
    CUDA(cudaEventRecord(shared.event, shared.stream));
  }
}

void wait() {
  add_one<<<kCount / 256, 256, 0, shared.stream>>>(shared.device);
  CUDA(cudaStreamSynchronize(shared.stream));
}

void allocate() {
  int* memory;
  CUDA(cudaMalloc(&memory, kBytes));
  CUDA(cudaFree(memory));
}

void copy() {
  CUDA(cudaMemcpy(shared.device, pageable, kBytes, cudaMemcpyHostToDevice));
  CUDA(cudaMemcpy(pageable, shared.device, kBytes, cudaMemcpyDeviceToHost));
}

void copy_locked() {
  CUDA(
      cudaMemcpyAsync(shared.locked, shared.device, kBytes, cudaMemcpyDeviceToHost, shared.stream));
  CUDA(cudaEventRecord(shared.event, shared.stream));
  CUDA(cudaEventSynchronize(shared.event));
}

// The kernel uses the memory in place, and the host writes to it between launches.
void launch_on_locked() {
  shared.locked[0] = 1;
  add_one<<<kCount / 256, 256, 0, shared.stream>>>(shared.locked);
  CUDA(cudaGetLastError());
}

void (*const kinds[])() = {launch, wait, allocate, copy, copy_locked, launch_on_locked};

void* repeat(void* kind) {
  while (true) {
    (*static_cast<void (*const*)()>(kind))();
    pthread_testcancel();
  }
}

}  // namespace

int main() {
  CUDA(cudaMalloc(&shared.device, kBytes));
  CUDA(cudaMallocHost(&shared.locked, kBytes));
  CUDA(cudaStreamCreate(&shared.stream));
  CUDA(cudaEventCreate(&shared.event));
  int cancelled = 0;
  for (int round = 0; round < 8; ++round) {
    for (auto& kind : kinds) {
      pthread_t thread;
      CHECK(pthread_create(&thread, nullptr, repeat, const_cast<void (**)()>(&kind)) == 0);
      usleep(500 + 300 * round);
      CHECK(pthread_cancel(thread) == 0);
      void* result = nullptr;
      CHECK(pthread_join(thread, &result) == 0);
      cancelled += result == PTHREAD_CANCELED;
    }
  }
  std::printf("cancelled: %d\n", cancelled);
  FINISH();
  DeviceArray<int> after(std::vector<int>(kCount, 5));
  add_one<<<kCount / 256, 256>>>(after.get());
  FINISH();
  CHECK(after.values() == std::vector<int>(kCount, 6));
  std::printf("the process goes on\n");
}
