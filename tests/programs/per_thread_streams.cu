// Compiled with --default-stream per-thread: each host thread has its own default stream.
#include <thread>

#include "program.h"

__global__ void step(unsigned* state, unsigned value) { *state = *state * 3 + value; }

int main() {
  std::vector<std::thread> threads;
  std::vector<unsigned> results(4);
  for (unsigned id = 0; id < results.size(); ++id) {
    threads.emplace_back([id, &results] {
      unsigned* state;
      CUDA(cudaMalloc(&state, sizeof(unsigned)));
      CUDA(cudaMemcpyAsync(state, &id, sizeof id, cudaMemcpyHostToDevice));
      for (unsigned i = 0; i < 50; ++i) step<<<1, 1>>>(state, i + id);
      CUDA(cudaMemcpyAsync(&results[id], state, sizeof id, cudaMemcpyDeviceToHost));
      CUDA(cudaStreamSynchronize(cudaStreamPerThread));
      EXPECT(cudaSuccess, cudaStreamQuery(cudaStreamPerThread));
      CUDA(cudaFree(state));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (unsigned id = 0; id < results.size(); ++id) {
    unsigned expected = id;
    for (unsigned i = 0; i < 50; ++i) expected = expected * 3 + i + id;
    CHECK(results[id] == expected);
    std::printf("%08x ", expected);
  }
  std::printf("\n");

  // The legacy stream still waits for this thread's stream.
  DeviceArray<unsigned> state(std::vector<unsigned>{1});
  unsigned expected = 1;
  for (unsigned i = 0; i < 40; ++i) {
    step<<<1, 1, 0, i % 2 ? cudaStreamLegacy : cudaStreamPerThread>>>(state.get(), i);
    expected = expected * 3 + i;
  }
  CUDA(cudaDeviceSynchronize());
  CHECK(state.values()[0] == expected);
  std::printf("%08x\n", expected);
}
