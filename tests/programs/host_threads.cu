// Several host threads with their own streams, one shared device, and hand-overs between threads.
#include <condition_variable>
#include <mutex>
#include <thread>

#include "program.h"

__global__ void step(unsigned* state, unsigned value) { *state = *state * 5 + value; }

__global__ void fill(unsigned* values, int n, unsigned seed) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] = (seed + i) * 2654435761u;
}

void work(int id, unsigned* result) {
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  unsigned hash = id;
  for (int round = 0; round < 25; ++round) {
    const int n = 500 + 100 * id + round;
    unsigned* values;
    CUDA(cudaMalloc(&values, n * sizeof(unsigned)));
    fill<<<(n + 127) / 128, 128, 0, stream>>>(values, n, id * 1000 + round);
    std::vector<unsigned> host(n);
    CUDA(
        cudaMemcpyAsync(host.data(), values, n * sizeof(unsigned), cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    for (int i = 0; i < n; ++i) CHECK(host[i] == (id * 1000 + round + i) * 2654435761u);
    hash = hash * 31 + static_cast<unsigned>(digest(host));
    CUDA(cudaFree(values));
  }
  // Errors belong to the thread whose call failed.
  if (id == 3) {
    EXPECT(cudaErrorInvalidValue, cudaMalloc(nullptr, 1));
    EXPECT(cudaErrorInvalidValue, cudaGetLastError());
  } else {
    CUDA(cudaGetLastError());
  }
  CUDA(cudaStreamDestroy(stream));
  *result = hash;
}

int main() {
  const int count = 6;
  std::vector<std::thread> threads;
  std::vector<unsigned> results(count);
  for (int id = 0; id < count; ++id) threads.emplace_back(work, id, &results[id]);
  for (std::thread& thread : threads) thread.join();
  for (const unsigned result : results) std::printf("%08x ", result);
  std::printf("\n");

  // Two threads issue into one stream in turn: the order of issue is the order of execution.
  DeviceArray<unsigned> state(std::vector<unsigned>{1});
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  std::mutex mutex;
  std::condition_variable changed;
  int turn = 0;
  const auto take_turns = [&](int me) {
    for (int i = 0; i < 100; ++i) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return turn % 2 == me; });
      step<<<1, 1, 0, stream>>>(state.get(), turn);
      CUDA(cudaGetLastError());
      ++turn;
      changed.notify_one();
    }
  };
  std::thread first(take_turns, 0), second(take_turns, 1);
  first.join();
  second.join();
  CUDA(cudaStreamSynchronize(stream));
  unsigned expected = 1;
  for (unsigned i = 0; i < 200; ++i) expected = expected * 5 + i;
  CHECK(state.values()[0] == expected);
  std::printf("turns %08x\n", expected);
  CUDA(cudaStreamDestroy(stream));
}
