// Executables whose copies get memory of another kind, from page-locked to pageable and back: by an
// update with another graph, by parameters of one node, and inside a child graph. Each happens
// several times, also after the end of the graphs from which the executables were made.
#include <cstring>

#include "program.h"

constexpr int kCount = 1000;
constexpr size_t kBytes = kCount * sizeof(int);

__global__ void add(int* values, int count, int addend) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) values[i] += addend;
}

struct Memory {
  int* in;
  int* out;
  bool page_locked;
};

Memory make(bool page_locked) {
  Memory memory{nullptr, nullptr, page_locked};
  if (page_locked) {
    CUDA(cudaMallocHost(&memory.in, kBytes));
    CUDA(cudaMallocHost(&memory.out, kBytes));
  } else {
    memory.in = static_cast<int*>(std::malloc(kBytes));
    memory.out = static_cast<int*>(std::malloc(kBytes));
  }
  return memory;
}

void destroy(const Memory& memory) {
  if (memory.page_locked) {
    CUDA(cudaFreeHost(memory.in));
    CUDA(cudaFreeHost(memory.out));
  } else {
    std::free(memory.in);
    std::free(memory.out);
  }
}

cudaGraph_t record(cudaStream_t stream, int* device, const Memory& memory, int addend) {
  cudaGraph_t graph;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CUDA(cudaMemcpyAsync(device, memory.in, kBytes, cudaMemcpyHostToDevice, stream));
  add<<<1, 128, 0, stream>>>(device, kCount, addend);
  CUDA(cudaMemcpyAsync(memory.out, device, kBytes, cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamEndCapture(stream, &graph));
  return graph;
}

// Every launch reads the memory's content at that time.
void run(cudaGraphExec_t executable, cudaStream_t stream, const Memory& memory, int addend) {
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < kCount; ++i) memory.in[i] = i * 7 + round;
    std::memset(memory.out, 0, kBytes);
    CUDA(cudaGraphLaunch(executable, stream));
    CUDA(cudaStreamSynchronize(stream));
    for (int i = 0; i < kCount; ++i) CHECK(memory.out[i] == i * 7 + round + addend);
  }
}

void update(bool first_locked) {
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  DeviceArray<int> device(kCount);
  const Memory first = make(first_locked), second = make(!first_locked),
               third = make(!first_locked);
  cudaGraph_t graph = record(stream, device.get(), first, 1);
  cudaGraphExec_t executable;
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  run(executable, stream, first, 1);
  int addend = 1;
  for (const Memory& memory : {second, third, first, second, first, first, third}) {
    cudaGraph_t next = record(stream, device.get(), memory, ++addend);
    cudaGraphExecUpdateResultInfo info;
    const cudaError_t result = cudaGraphExecUpdate(executable, next, &info);
    std::printf("to %s: %s\n", memory.page_locked ? "page-locked" : "pageable",
                cudaGetErrorName(result));
    CUDA(cudaGraphDestroy(next));
    CHECK(result == cudaSuccess && info.result == cudaGraphExecUpdateSuccess);
    run(executable, stream, memory, addend);
  }

  // A graph of another shape is refused for every kind of memory, and the executable stays as it
  // was.
  cudaGraph_t other;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CUDA(cudaMemcpyAsync(device.get(), first.in, kBytes, cudaMemcpyHostToDevice, stream));
  CUDA(cudaMemcpyAsync(second.out, device.get(), kBytes, cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamEndCapture(stream, &other));
  cudaGraphExecUpdateResultInfo info;
  EXPECT(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(executable, other, &info));
  (void)cudaGetLastError();
  CHECK(info.result == cudaGraphExecUpdateErrorTopologyChanged);
  CUDA(cudaGraphDestroy(other));
  run(executable, stream, third, addend);

  // After updates, the nodes of the first graph still stand for the executable's nodes.
  size_t count = 3;
  cudaGraphNode_t nodes[3];
  CUDA(cudaGraphGetNodes(graph, nodes, &count));
  int copies = 0;
  for (size_t i = 0; i < count; ++i) {
    cudaGraphNodeType type;
    CUDA(cudaGraphNodeGetType(nodes[i], &type));
    if (type != cudaGraphNodeTypeMemcpy) continue;
    cudaMemcpy3DParms copy;
    CUDA(cudaGraphMemcpyNodeGetParams(nodes[i], &copy));
    if (copy.srcPtr.ptr == first.in) {
      CUDA(cudaGraphExecMemcpyNodeSetParams1D(executable, nodes[i], device.get(), second.in, kBytes,
                                              cudaMemcpyHostToDevice));
    } else {
      CUDA(cudaGraphExecMemcpyNodeSetParams1D(executable, nodes[i], second.out, device.get(),
                                              kBytes, cudaMemcpyDeviceToHost));
    }
    ++copies;
  }
  CHECK(copies == 2);
  run(executable, stream, second, addend);
  CUDA(cudaGraphDestroy(graph));
  run(executable, stream, second, addend);
  CUDA(cudaGraphExecDestroy(executable));
  for (const Memory& memory : {first, second, third}) destroy(memory);
  CUDA(cudaStreamDestroy(stream));
}

void update_child() {
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  DeviceArray<int> device(kCount);
  const Memory locked = make(true), pageable = make(false);
  cudaGraph_t inner = record(stream, device.get(), locked, 10), outer;
  cudaGraphNode_t before, child;
  CUDA(cudaGraphCreate(&outer, 0));
  CUDA(cudaGraphAddMemcpyNode1D(&before, outer, nullptr, 0, device.get(), pageable.in, kBytes,
                                cudaMemcpyHostToDevice));
  CUDA(cudaGraphAddChildGraphNode(&child, outer, &before, 1, inner));
  cudaGraphExec_t executable;
  CUDA(cudaGraphInstantiate(&executable, outer, 0));
  run(executable, stream, locked, 10);
  int addend = 10;
  for (const Memory& memory : {pageable, locked, pageable}) {
    cudaGraph_t next = record(stream, device.get(), memory, ++addend);
    const cudaError_t result = cudaGraphExecChildGraphNodeSetParams(executable, child, next);
    std::printf("child to %s: %s\n", memory.page_locked ? "page-locked" : "pageable",
                cudaGetErrorName(result));
    CHECK(result == cudaSuccess);
    CUDA(cudaGraphDestroy(next));
    run(executable, stream, memory, addend);
  }
  CUDA(cudaGraphExecDestroy(executable));
  CUDA(cudaGraphDestroy(outer));
  CUDA(cudaGraphDestroy(inner));
  destroy(locked);
  destroy(pageable);
  CUDA(cudaStreamDestroy(stream));
}

int main() {
  update(true);
  update(false);
  update_child();
}
