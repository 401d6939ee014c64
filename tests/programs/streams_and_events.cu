// Order within and between streams, events, priorities, default-stream rules and timing.
#include "program.h"

__global__ void append(int* state, int value) { *state = *state * 3 + value; }

__global__ void spin(int* state, int rounds) {
  volatile int* counter = state;
  for (int i = 0; i < rounds; ++i) *counter = *counter + 1;
}

// Two streams take turns; every step depends on the previous step by an event.
void take_turns() {
  DeviceArray<int> state(std::vector<int>{1});
  cudaStream_t streams[2];
  CUDA(cudaStreamCreate(&streams[0]));
  CUDA(cudaStreamCreateWithFlags(&streams[1], cudaStreamNonBlocking));
  cudaEvent_t done[2];
  for (cudaEvent_t& event : done) CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  unsigned expected = 1;
  for (int i = 0; i < 200; ++i) {
    const int me = i % 2;
    if (i > 0) CUDA(cudaStreamWaitEvent(streams[me], done[1 - me], 0));
    append<<<1, 1, 0, streams[me]>>>(state.get(), i);
    CUDA(cudaEventRecord(done[me], streams[me]));
    expected = expected * 3 + i;
  }
  CUDA(cudaEventSynchronize(done[1]));
  EXPECT(cudaSuccess, cudaEventQuery(done[1]));
  CHECK(static_cast<unsigned>(state.values()[0]) == expected);
  std::printf("turns %u\n", expected);
  float unused;
  EXPECT(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&unused, done[0], done[1]));
  cudaGetLastError();
  for (cudaEvent_t event : done) CUDA(cudaEventDestroy(event));
  for (cudaStream_t stream : streams) CUDA(cudaStreamDestroy(stream));
}

// A wait waits for the last record before the call, not for a later record.
void wait_takes_the_last_record() {
  int* state;
  CUDA(cudaMallocManaged(&state, sizeof(int)));
  *state = 0;
  cudaStream_t first, second;
  CUDA(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  cudaEvent_t event;
  CUDA(cudaEventCreate(&event));
  CUDA(cudaStreamWaitEvent(second, event, 0));  // never recorded: no wait
  CUDA(cudaStreamSynchronize(second));
  append<<<1, 1, 0, first>>>(state, 5);
  CUDA(cudaEventRecord(event, first));
  CUDA(cudaStreamWaitEvent(second, event, 0));
  append<<<1, 1, 0, second>>>(state, 7);
  CUDA(cudaEventRecord(event, second));
  CUDA(cudaStreamWaitEvent(first, event, 0));
  append<<<1, 1, 0, first>>>(state, 9);
  CUDA(cudaDeviceSynchronize());
  CHECK(*state == (5 * 3 + 7) * 3 + 9);
  std::printf("records %d\n", *state);
  CUDA(cudaEventDestroy(event));
  CUDA(cudaStreamDestroy(first));
  CUDA(cudaStreamDestroy(second));
  CUDA(cudaFree(state));
}

// The legacy default stream waits for blocking streams, and they wait for it.
void default_stream_is_a_barrier() {
  DeviceArray<int> state(std::vector<int>{1});
  cudaStream_t streams[3];
  for (cudaStream_t& stream : streams) CUDA(cudaStreamCreate(&stream));
  unsigned expected = 1;
  for (int i = 0; i < 60; ++i) {
    append<<<1, 1, 0, streams[i % 3]>>>(state.get(), i);
    append<<<1, 1>>>(state.get(), i + 1);
    expected = (expected * 3 + i) * 3 + i + 1;
  }
  CUDA(cudaStreamSynchronize(nullptr));
  CHECK(static_cast<unsigned>(state.values()[0]) == expected);
  std::printf("default stream %u\n", expected);
  for (cudaStream_t stream : streams) CUDA(cudaStreamDestroy(stream));
}

void timing() {
  cudaEvent_t start, stop;
  CUDA(cudaEventCreate(&start));
  CUDA(cudaEventCreate(&stop));
  DeviceArray<int> state(1);
  state.clear();
  float milliseconds = -1;
  EXPECT(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&milliseconds, start, stop));
  cudaGetLastError();
  CUDA(cudaEventRecord(start));
  spin<<<1, 1>>>(state.get(), 10000);
  CUDA(cudaEventRecord(stop));
  CUDA(cudaEventSynchronize(stop));
  CUDA(cudaEventElapsedTime(&milliseconds, start, stop));
  CHECK(milliseconds >= 0 && milliseconds < 60000);
  CUDA(cudaEventElapsedTime(&milliseconds, start, start));
  CHECK(milliseconds == 0);
  CHECK(state.values()[0] == 10000);
  CUDA(cudaEventDestroy(start));
  CUDA(cudaEventDestroy(stop));
}

void properties() {
  int least, greatest;
  CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  CHECK(least == 0 && greatest <= 0);
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  int priority;
  unsigned flags;
  CUDA(cudaStreamGetPriority(stream, &priority));
  CUDA(cudaStreamGetFlags(stream, &flags));
  CHECK(priority == greatest && flags == cudaStreamNonBlocking);
  unsigned long long id, other;
  CUDA(cudaStreamGetId(stream, &id));
  CUDA(cudaStreamGetId(nullptr, &other));
  CHECK(id != other);
  EXPECT(cudaSuccess, cudaStreamQuery(stream));
  CUDA(cudaStreamDestroy(stream));
  EXPECT(cudaErrorInvalidValue, cudaStreamCreateWithFlags(&stream, 0x80));
  cudaGetLastError();
}

int main() {
  take_turns();
  wait_takes_the_last_record();
  default_stream_is_a_barrier();
  timing();
  properties();
}
