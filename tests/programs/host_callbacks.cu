// Host functions take their place in stream order, see what came before, and hold back what
// follows.
#include <atomic>
#include <string>
#include <thread>

#include "program.h"

__global__ void multiply(int* value, int factor) { *value *= factor; }

struct Step {
  int* value;  // mapped: the host sees what the kernel wrote
  int add;
  std::string* log;
};

void CUDART_CB on_host(void* data) {
  Step* step = static_cast<Step*>(data);
  *step->log += std::to_string(*step->value) + " ";
  *step->value += step->add;
}

struct CallbackState {
  std::atomic<int> calls{0};
  cudaStream_t stream = nullptr;
};

void CUDART_CB on_callback(cudaStream_t stream, cudaError_t status, void* data) {
  CallbackState* state = static_cast<CallbackState*>(data);
  CHECK(status == cudaSuccess && stream == state->stream);
  // The API is closed inside.
  EXPECT(cudaErrorNotPermitted, cudaMalloc(&data, 16));
  ++state->calls;
}

int main() {
  int* value;
  CUDA(cudaHostAlloc(&value, sizeof(int), cudaHostAllocMapped));
  int* device_value;
  CUDA(cudaHostGetDevicePointer(&device_value, value, 0));
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  std::string log;
  *value = 1;
  Step steps[20];
  for (int i = 0; i < 20; ++i) {
    steps[i] = {value, i, &log};
    multiply<<<1, 1, 0, stream>>>(device_value, i % 3 + 1);
    CUDA(cudaLaunchHostFunc(stream, on_host, &steps[i]));
  }
  CUDA(cudaStreamSynchronize(stream));
  std::printf("%s\n", log.c_str());

  CallbackState state;
  state.stream = stream;
  for (int i = 0; i < 5; ++i) {
    multiply<<<1, 1, 0, stream>>>(device_value, 1);
    CUDA(cudaStreamAddCallback(stream, on_callback, &state, 0));
  }
  CUDA(cudaStreamSynchronize(stream));
  CHECK(state.calls == 5);

  // The default stream too, and an event behind it.
  cudaEvent_t event;
  CUDA(cudaEventCreate(&event));
  Step last{value, 1000, &log};
  CUDA(cudaLaunchHostFunc(nullptr, on_host, &last));
  CUDA(cudaEventRecord(event));
  const int before = *value;
  CUDA(cudaEventSynchronize(event));
  CHECK(*value == before + 1000 || before == *value);
  std::printf("value %d\n", *value);
  CUDA(cudaEventDestroy(event));
  CUDA(cudaStreamDestroy(stream));
  CUDA(cudaFreeHost(value));
}
