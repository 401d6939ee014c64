// CUDA_LAUNCH_BLOCKING=1: a launch returns after its kernel. So the kernel's effects are visible,
// and the launch itself returns the kernel's errors.
#include <cuda.h>

#include "program.h"

namespace {

__global__ void set_later(volatile int* value, int number) {
  const long long begin = clock64();
  while (clock64() - begin < 5000000) {
  }
  *value = number;
}

__global__ void write_anywhere(int* where) { *where = 1; }

void launches(volatile int* value, cudaStream_t stream) {
  set_later<<<1, 1, 0, stream>>>(const_cast<int*>(value), 1);
  CUDA(cudaGetLastError());
  const int seen = *value;
  std::printf("a launch: %d, the stream %s\n", seen, cudaGetErrorName(cudaStreamQuery(stream)));

  set_later<<<1, 1>>>(const_cast<int*>(value), 2);
  CUDA(cudaGetLastError());
  std::printf("in the default stream: %d\n", *value);

  int* address = const_cast<int*>(value);
  int number = 3;
  void* parameters[] = {&address, &number};
  CUDA(cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(set_later), 1, 1, parameters, 0,
                                   stream));
  std::printf("a cooperative launch: %d\n", *value);

  cudaLaunchConfig_t config{};
  config.gridDim = config.blockDim = 1;
  config.stream = stream;
  CUDA(cudaLaunchKernelEx(&config, set_later, static_cast<volatile int*>(value), 4));
  std::printf("a launch with attributes: %d\n", *value);
}

// A launch in a capturing stream does not wait. A launch in another stream does not disturb the
// capture.
void captures(volatile int* value, cudaStream_t stream) {
  cudaStream_t other;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  set_later<<<1, 1, 0, stream>>>(const_cast<int*>(value), 5);
  CUDA(cudaGetLastError());
  std::printf("captured: %d\n", *value);
  set_later<<<1, 1, 0, other>>>(const_cast<int*>(value), 6);
  CUDA(cudaGetLastError());
  std::printf("beside the capture: %d\n", *value);
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  CUDA(cudaGraphLaunch(executable, stream));
  CUDA(cudaStreamSynchronize(stream));
  std::printf("the graph: %d\n", *value);
  CUDA(cudaGraphExecDestroy(executable));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaStreamDestroy(other));
}

}  // namespace

int main() {
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  int* value = nullptr;
  cudaStream_t stream;
  CUDA(cudaHostAlloc(&value, sizeof *value, cudaHostAllocMapped));
  *value = 0;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  launches(value, stream);
  captures(value, stream);
  write_anywhere<<<1, 1, 0, stream>>>(reinterpret_cast<int*>(16));
  const cudaError_t launched = cudaGetLastError();
  std::printf("a faulting kernel: %s, the stream %s\n", cudaGetErrorName(launched),
              cudaGetErrorName(cudaStreamQuery(stream)));
}
