// Host functions run in stream order: they see the results of earlier work, and later work waits
// for them. While a host function waits for the application, other streams continue.
#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

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
  // The API refuses calls in a host function.
  EXPECT(cudaErrorNotPermitted, cudaMalloc(&data, 16));
  ++state->calls;
}

__global__ void add_one(int* values) { ++values[blockIdx.x * blockDim.x + threadIdx.x]; }

constexpr int kCount = 3 << 19;  // 6 MiB of ints: copies of this size are made in pieces

struct Waiting {
  std::atomic<bool> entered{false}, released{false};
};

void CUDART_CB wait_for_release(void* data) {
  auto* waiting = static_cast<Waiting*>(data);
  waiting->entered = true;
  while (!waiting->released) std::this_thread::yield();
}

// Memory of several kinds. Allocated and freed outside of the tests, because cudaFree waits for all
// streams.
struct Buffers {
  static constexpr size_t kBytes = kCount * sizeof(int);
  Buffers() {
    CUDA(cudaMalloc(&device, kBytes));
    CUDA(cudaMallocHost(&locked, kBytes));
    CUDA(cudaHostAlloc(&mapped, kBytes, cudaHostAllocMapped));
    CUDA(cudaMallocManaged(&managed, kBytes));
  }
  ~Buffers() {
    CUDA(cudaFree(managed));
    CUDA(cudaFreeHost(mapped));
    CUDA(cudaFreeHost(locked));
    CUDA(cudaFree(device));
  }
  int *device, *locked, *mapped, *managed;
  std::vector<int> pageable = std::vector<int>(kCount);
};

void use(Buffers& buffers, cudaStream_t stream) {
  constexpr size_t kBytes = Buffers::kBytes;
  std::fill(buffers.locked, buffers.locked + kCount, 1);
  std::fill(buffers.mapped, buffers.mapped + kCount, 5);
  std::fill(buffers.managed, buffers.managed + kCount, 7);
  CUDA(cudaMemcpyAsync(buffers.device, buffers.locked, kBytes, cudaMemcpyHostToDevice, stream));
  for (int* values : {buffers.device, buffers.mapped, buffers.managed}) {
    add_one<<<kCount / 256, 256, 0, stream>>>(values);
  }
  CUDA(cudaMemcpyAsync(buffers.locked, buffers.device, kBytes, cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaMemcpyAsync(buffers.pageable.data(), buffers.device, kBytes, cudaMemcpyDeviceToHost,
                       stream));
  CUDA(cudaStreamSynchronize(stream));
  for (int i : {0, kCount / 2, kCount - 1}) {
    CHECK(buffers.locked[i] == 2 && buffers.pageable[i] == 2);
    CHECK(buffers.mapped[i] == 6 && buffers.managed[i] == 8);
  }
}

void use_while_one_waits() {
  Buffers buffers;
  cudaStream_t waiting_stream, stream;
  CUDA(cudaStreamCreateWithFlags(&waiting_stream, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  use(buffers, stream);  // the first use loads code
  for (const bool is_callback : {false, true}) {
    Waiting waiting;
    int order = 0;
    if (is_callback) {
      const auto call = [](cudaStream_t, cudaError_t, void* data) { wait_for_release(data); };
      CUDA(cudaStreamAddCallback(waiting_stream, call, &waiting, 0));
    } else {
      CUDA(cudaLaunchHostFunc(waiting_stream, wait_for_release, &waiting));
    }
    const auto count = [](void* data) { ++*static_cast<int*>(data); };
    CUDA(cudaLaunchHostFunc(waiting_stream, count, &order));
    while (!waiting.entered) std::this_thread::yield();
    use(buffers, stream);
    CHECK(cudaStreamQuery(waiting_stream) == cudaErrorNotReady);
    CHECK(order == 0);
    waiting.released = true;
    CUDA(cudaStreamSynchronize(waiting_stream));
    CHECK(order == 1);
  }
  CUDA(cudaStreamDestroy(stream));
  CUDA(cudaStreamDestroy(waiting_stream));
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

  // The same in the default stream, followed by an event.
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
  use_while_one_waits();
}
