// cuda::pipeline with shared state, and cuda::memcpy_async that completes on a barrier.
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/pipeline>

#include "program.h"

namespace cg = cooperative_groups;

constexpr int kThreads = 64, kStages = 2, kBatch = kThreads * 4;

__global__ void staged(const int* in, int* out, int batches) {
  __shared__ alignas(16) int buffer[kStages][kBatch];
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, kStages> state;
  cg::thread_block block = cg::this_thread_block();
  auto pipeline = cuda::make_pipeline(block, &state);
  int fetched = 0;
  for (int batch = 0; batch < batches; ++batch) {
    for (; fetched < batches && fetched < batch + kStages; ++fetched) {
      pipeline.producer_acquire();
      cuda::memcpy_async(block, buffer[fetched % kStages], in + fetched * kBatch,
                         cuda::aligned_size_t<16>(kBatch * sizeof(int)), pipeline);
      pipeline.producer_commit();
    }
    pipeline.consumer_wait();
    for (int i = threadIdx.x; i < kBatch; i += kThreads) {
      out[batch * kBatch + i] = buffer[batch % kStages][kBatch - 1 - i] + batch;
    }
    pipeline.consumer_release();
  }
}

__global__ void on_barrier(const int* in, int* out) {
  __shared__ alignas(16) int buffer[kBatch];
  using Barrier = cuda::barrier<cuda::thread_scope_block>;
  __shared__ alignas(Barrier) unsigned char storage[sizeof(Barrier)];
  Barrier& barrier = *reinterpret_cast<Barrier*>(storage);
  cg::thread_block block = cg::this_thread_block();
  if (block.thread_rank() == 0) init(&barrier, block.size());
  block.sync();
  cuda::memcpy_async(block, buffer, in, sizeof buffer, barrier);
  Barrier::arrival_token token = barrier.arrive();
  barrier.wait(std::move(token));
  for (int i = threadIdx.x; i < kBatch; i += kThreads) out[i] = buffer[i ^ 1] * 2;
}

int main() {
  const int batches = 7;
  std::vector<int> in(batches * kBatch);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<int>(i * i % 7919);
  DeviceArray<int> device(in), out(in.size()), doubled(kBatch);
  staged<<<1, kThreads>>>(device.get(), out.get(), batches);
  on_barrier<<<1, kThreads>>>(device.get(), doubled.get());
  FINISH();
  const std::vector<int> values = out.values(), twice = doubled.values();
  for (int batch = 0; batch < batches; ++batch) {
    for (int i = 0; i < kBatch; ++i) {
      CHECK(values[batch * kBatch + i] == in[batch * kBatch + kBatch - 1 - i] + batch);
    }
  }
  for (int i = 0; i < kBatch; ++i) CHECK(twice[i] == in[i ^ 1] * 2);
  print_digest("staged", values);
  print_digest("doubled", twice);
}
