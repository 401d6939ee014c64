// Copies from page-locked memory that is written in stream order, by an earlier copy from the
// device, host function or graph; or that the host changes after an earlier copy of it has ended.
#include <cstring>

#include "program.h"

constexpr int kSizes[] = {64, 100 << 10, 1 << 20};  // travel in a command, in several, in pieces

struct Fill {
  char* memory;
  size_t bytes;
  int value;
};
void CUDART_CB fill(void* argument) {
  const auto* order = static_cast<Fill*>(argument);
  std::memset(order->memory, order->value, order->bytes);
}

__global__ void spin(long long cycles) {
  const long long end = clock64() + cycles;
  while (clock64() < end) {
  }
}

int main() {
  for (const size_t bytes : kSizes) {
    char *first, *second, *pinned;
    CUDA(cudaMalloc(&first, bytes));
    CUDA(cudaMalloc(&second, bytes));
    CUDA(cudaMallocHost(&pinned, bytes));
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    std::vector<char> seen(bytes);
    const auto holds = [&](int value) {
      CUDA(cudaStreamSynchronize(stream));
      CUDA(cudaMemcpy(seen.data(), second, bytes, cudaMemcpyDeviceToHost));
      for (const char byte : seen) CHECK(byte == value);
    };
    const auto up = [&] {
      CUDA(cudaMemcpyAsync(second, pinned, bytes, cudaMemcpyHostToDevice, stream));
    };
    const auto down = [&] {
      CUDA(cudaMemcpyAsync(pinned, first, bytes, cudaMemcpyDeviceToHost, stream));
    };

    // The host changes the memory as soon as its copy has ended, several times.
    cudaEvent_t over;
    CUDA(cudaEventCreateWithFlags(&over, cudaEventDisableTiming));
    for (int value = 1; value < 6; ++value) {
      std::memset(pinned, value, bytes);
      up();
      CUDA(cudaEventRecord(over, stream));
      CUDA(cudaEventSynchronize(over));
    }
    holds(5);

    // From the device to the device, by way of the host.
    CUDA(cudaMemsetAsync(first, 11, bytes, stream));
    spin<<<1, 1, 0, stream>>>(100'000);
    down();
    up();
    holds(11);

    // The same in the default stream, with a synchronous copy.
    CUDA(cudaMemset(first, 12, bytes));
    spin<<<1, 1>>>(100'000);
    CUDA(cudaMemcpyAsync(pinned, first, bytes, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(second, pinned, bytes, cudaMemcpyHostToDevice));
    holds(12);

    // Written by a host function.
    Fill order{pinned, bytes, 13};
    spin<<<1, 1, 0, stream>>>(100'000);
    CUDA(cudaLaunchHostFunc(stream, fill, &order));
    up();
    holds(13);

    // Written by a graph's copy, twice.
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    down();
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    for (const int value : {14, 15}) {
      CUDA(cudaMemsetAsync(first, value, bytes, stream));
      CUDA(cudaGraphLaunch(executable, stream));
      up();
      holds(value);
    }

    // Written by another stream, before an event.
    cudaStream_t other;
    CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CUDA(cudaMemsetAsync(first, 16, bytes, other));
    spin<<<1, 1, 0, other>>>(100'000);
    CUDA(cudaMemcpyAsync(pinned, first, bytes, cudaMemcpyDeviceToHost, other));
    CUDA(cudaEventRecord(over, other));
    CUDA(cudaStreamWaitEvent(stream, over));
    up();
    holds(16);

    CUDA(cudaGraphExecDestroy(executable));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaEventDestroy(over));
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaStreamDestroy(other));
    CUDA(cudaFree(first));
    CUDA(cudaFree(second));
    CUDA(cudaFreeHost(pinned));
    std::printf("%zu bytes: in order\n", bytes);
  }
}
