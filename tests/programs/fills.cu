// memset in one, two and three dimensions, of bytes, halves and words, aligned or not; of device
// memory, and of host memory, which is filled when the call returns.
#include <cstring>

#include <cuda.h>

#include "program.h"

__managed__ unsigned char variable[64];

__global__ void spin(long long cycles) {
  const long long end = clock64() + cycles;
  while (clock64() < end) {
  }
}

void fill_on_host(const char* how, unsigned char* memory, size_t bytes) {
  const auto holds = [&](int value) {
    for (size_t i = 0; i < bytes; ++i) CHECK(memory[i] == value);
  };
  std::memset(memory, 1, bytes);
  spin<<<1, 1>>>(1'000'000);
  CUDA(cudaMemset(memory, 2, bytes));
  holds(2);
  std::memset(memory, 3, bytes);
  spin<<<1, 1>>>(1'000'000);
  CUDA(cudaMemset2D(memory + 1, 8, 4, 3, bytes / 8));
  for (size_t i = 0; i < bytes; ++i) CHECK(memory[i] == (i % 8 >= 1 && i % 8 <= 3 ? 4 : 3));

  // In a stream, before a copy.
  DeviceArray<unsigned char> device(bytes);
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA(cudaMemsetAsync(memory, 5, bytes, stream));
  CUDA(cudaMemcpyAsync(device.get(), memory, bytes, cudaMemcpyDefault, stream));
  CUDA(cudaStreamSynchronize(stream));
  holds(5);
  CHECK(device.values() == std::vector<unsigned char>(bytes, 5));

  // In graphs: an added node, the same node with other parameters, and a captured node.
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaGraphNode_t node;
  cudaMemsetParams parameters = {};
  parameters.dst = memory;
  parameters.value = 6;
  parameters.elementSize = 1;
  parameters.width = bytes;
  parameters.height = 1;
  CUDA(cudaGraphCreate(&graph, 0));
  CUDA(cudaGraphAddMemsetNode(&node, graph, nullptr, 0, &parameters));
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  CUDA(cudaGraphLaunch(executable, stream));
  CUDA(cudaStreamSynchronize(stream));
  holds(6);
  parameters.value = 7;
  CUDA(cudaGraphExecMemsetNodeSetParams(executable, node, &parameters));
  CUDA(cudaGraphLaunch(executable, stream));
  CUDA(cudaStreamSynchronize(stream));
  holds(7);
  CUDA(cudaGraphExecDestroy(executable));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CUDA(cudaMemsetAsync(memory, 8, bytes, stream));
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  CUDA(cudaGraphLaunch(executable, stream));
  CUDA(cudaStreamSynchronize(stream));
  holds(8);
  CUDA(cudaGraphExecDestroy(executable));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaStreamDestroy(stream));
  std::printf("%s\n", how);
}

void fill_host_memory() {
  const size_t bytes = 8192;
  unsigned char* memory;
  CUDA(cudaMallocHost(&memory, bytes));
  fill_on_host("page-locked", memory, bytes);
  CUDA(cudaFreeHost(memory));
  CUDA(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped));
  fill_on_host("mapped", memory, bytes);
  CUDA(cudaFreeHost(memory));
  CUDA(cudaMallocManaged(&memory, bytes));
  fill_on_host("managed", memory, bytes);
  CUDA(cudaFree(memory));
  fill_on_host("variable", variable, sizeof variable);
  // Page-locked memory that only a graph fills.
  for (const bool later : {false, true}) {
    CUDA(cudaMallocHost(&memory, bytes));
    std::memset(memory, 0, bytes);
    DeviceArray<unsigned char> device(bytes);
    cudaMemsetParams parameters = {};
    parameters.dst = later ? device.get() : memory;
    parameters.value = 9;
    parameters.elementSize = 1;
    parameters.width = bytes;
    parameters.height = 1;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cudaGraphNode_t node;
    CUDA(cudaGraphCreate(&graph, 0));
    CUDA(cudaGraphAddMemsetNode(&node, graph, nullptr, 0, &parameters));
    parameters.dst = memory;
    if (later) CUDA(cudaGraphMemsetNodeSetParams(node, &parameters));
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    CUDA(cudaGraphLaunch(executable, nullptr));
    CUDA(cudaDeviceSynchronize());
    for (size_t i = 0; i < bytes; ++i) CHECK(memory[i] == 9);
    CUDA(cudaGraphExecDestroy(executable));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaFreeHost(memory));
  }
  std::printf("by a graph\n");
}

int main() {
  DeviceArray<unsigned char> bytes(1000);
  CUDA(cudaMemset(bytes.get(), 0xab, 1000));
  CUDA(cudaMemset(bytes.get() + 3, 0x5, 501));
  CUDA(cudaMemsetAsync(bytes.get() + 700, 257, 1, nullptr));  // only the low byte counts
  CUDA(cudaStreamSynchronize(nullptr));
  const std::vector<unsigned char> filled = bytes.values();
  for (int i = 0; i < 1000; ++i) {
    CHECK(filled[i] == (i == 700 ? 1 : i >= 3 && i < 504 ? 5 : 0xab));
  }
  print_digest("bytes", filled);

  DeviceArray<unsigned> words(256);
  words.clear();
  const CUdeviceptr base = reinterpret_cast<CUdeviceptr>(words.get());
  CHECK(cuMemsetD32(base + 16, 0xdeadbeef, 100) == CUDA_SUCCESS);
  CHECK(cuMemsetD16(base + 600, 0x1234, 33) == CUDA_SUCCESS);
  CHECK(cuMemsetD8(base + 1001, 0x77, 7) == CUDA_SUCCESS);
  CHECK(cuMemsetD2D32(base + 700, 64, 0x01020304, 3, 4) == CUDA_SUCCESS);
  CHECK(cuMemsetD2D16(base + 20, 64, 0xffff, 2, 5) == CUDA_SUCCESS);
  CHECK(cuMemsetD32Async(base, 42, 1, nullptr) == CUDA_SUCCESS);
  CHECK(cuMemsetD32(base + 2, 1, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemsetD16(base + 1, 1, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemsetD32(base, 1, 0) == CUDA_SUCCESS);
  print_digest("words", words.values());

  cudaPitchedPtr volume;
  CUDA(cudaMalloc3D(&volume, make_cudaExtent(30, 4, 3)));
  CUDA(cudaMemset(volume.ptr, 0, volume.pitch * 12));
  CUDA(cudaMemset3D(volume, 9, make_cudaExtent(17, 2, 3)));
  std::vector<unsigned char> back(30 * 12);
  CUDA(cudaMemcpy2D(back.data(), 30, volume.ptr, volume.pitch, 30, 12, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 30 * 12; ++i) CHECK(back[i] == (i % 30 < 17 && i / 30 % 4 < 2 ? 9 : 0));
  CUDA(cudaFree(volume.ptr));
  print_digest("volume", back);
  EXPECT(cudaErrorInvalidValue, cudaMemset(bytes.get(), 0, size_t{1} << 40));
  fill_host_memory();
}
