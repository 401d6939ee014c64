// Uses every kind of resource of a server, repeatedly, until it is killed or a call fails. Then it
// prints the error and the time since the last successful call, and exits with 3. Prints "running"
// after the first round.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cuda_runtime.h>

using Clock = std::chrono::steady_clock;

static Clock::time_point last_success = Clock::now();

static void check(cudaError_t error) {
  const Clock::time_point now = Clock::now();
  if (error == cudaSuccess) {
    last_success = now;
    return;
  }
  std::printf("%s %.3f\n", cudaGetErrorName(error),
              std::chrono::duration<double>(now - last_success).count());
  std::exit(3);
}

__global__ void add(unsigned* values, int n, unsigned value) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] += value;
}

int main() {
  const int n = 1 << 18;
  const size_t bytes = n * sizeof(unsigned);
  for (unsigned round = 0;; ++round) {
    unsigned *device, *pinned;
    cudaStream_t stream;
    cudaEvent_t event;
    check(cudaStreamCreate(&stream));
    check(cudaEventCreate(&event));
    check(cudaMalloc(&device, bytes));
    check(cudaMallocHost(&pinned, bytes));
    std::vector<unsigned> pageable(n, round);
    check(cudaMemcpyAsync(device, pageable.data(), bytes, cudaMemcpyHostToDevice, stream));
    for (int i = 0; i < 20; ++i) add<<<(n + 255) / 256, 256, 0, stream>>>(device, 256, 1);
    check(cudaGetLastError());
    check(cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, stream));
    check(cudaEventRecord(event, stream));
    check(cudaEventSynchronize(event));
    if (pinned[0] != round + 20 || pinned[n - 1] != round) return 1;
    check(cudaMemcpy(pageable.data(), device, bytes, cudaMemcpyDeviceToHost));
    if (std::memcmp(pageable.data(), pinned, bytes) != 0) return 1;
    check(cudaFreeHost(pinned));
    check(cudaFree(device));
    check(cudaEventDestroy(event));
    check(cudaStreamDestroy(stream));
    if (round == 0) {
      std::printf("running\n");
      std::fflush(stdout);
    }
  }
}
