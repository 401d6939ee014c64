// Memory that graphs allocate. It is used by other nodes and after the launch, and is freed outside
// of the graph or at the next launch. Also captures into existing graphs, with dependencies that
// change during the capture.
#include "program.h"

__global__ void set(int* values, int value) { values[threadIdx.x] = value + threadIdx.x; }
__global__ void add(int* values, int value) { values[threadIdx.x] += value; }
__global__ void sum(const int* values, int* out) {
  int all = 0;
  for (int i = 0; i < 32; ++i) all += values[i];
  *out += all;
}

constexpr int kCount = 32;
constexpr size_t kBytes = kCount * sizeof(int);

cudaGraphNode_t kernel_node(cudaGraph_t graph, std::vector<cudaGraphNode_t> after, void* function,
                            std::vector<void*> arguments, int threads) {
  cudaKernelNodeParams params{};
  params.func = function;
  params.gridDim = dim3(1);
  params.blockDim = dim3(threads);
  params.kernelParams = arguments.data();
  cudaGraphNode_t node;
  CUDA(cudaGraphAddKernelNode(&node, graph, after.data(), after.size(), &params));
  return node;
}

int* allocation_node(cudaGraphNode_t* node, cudaGraph_t graph) {
  cudaMemAllocNodeParams params{};
  params.poolProps.allocType = cudaMemAllocationTypePinned;
  params.poolProps.location = {cudaMemLocationTypeDevice, 0};
  params.bytesize = kBytes;
  CUDA(cudaGraphAddMemAllocNode(node, graph, nullptr, 0, &params));
  return static_cast<int*>(params.dptr);
}

// The memory outlives the launch; the application frees it in stream order.
void outlives_the_launch(cudaStream_t stream) {
  cudaGraph_t graph;
  CUDA(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t allocation;
  int* memory = allocation_node(&allocation, graph);
  int value = 5;
  kernel_node(graph, {allocation}, reinterpret_cast<void*>(set), {&memory, &value}, kCount);
  cudaGraphExec_t executable;
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  for (int round = 0; round < 3; ++round) {
    CUDA(cudaGraphLaunch(executable, stream));
    add<<<1, kCount, 0, stream>>>(memory, 100);
    CUDA(cudaGetLastError());
    int found[kCount];
    CUDA(cudaMemcpyAsync(found, memory, kBytes, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    for (int i = 0; i < kCount; ++i) CHECK(found[i] == 105 + i);
    cudaPointerAttributes attributes;
    CUDA(cudaPointerGetAttributes(&attributes, memory + 3));
    CHECK(attributes.type == cudaMemoryTypeDevice && attributes.device == 0);
    if (round == 1) {
      CUDA(cudaMemsetAsync(memory, 0, kBytes, stream));
      CUDA(cudaFree(memory));
    } else {
      CUDA(cudaFreeAsync(memory, stream));
    }
  }
  CUDA(cudaGraphLaunch(executable, stream));
  std::printf("launched again unfreed: %s\n",
              cudaGetErrorName(cudaGraphLaunch(executable, stream)));
  (void)cudaGetLastError();
  CUDA(cudaFreeAsync(memory, stream));
  std::printf("freed twice: %s\n", cudaGetErrorName(cudaFreeAsync(memory, stream)));
  (void)cudaGetLastError();
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaGraphExecDestroy(executable));

  CUDA(cudaGraphInstantiate(&executable, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch));
  unsigned long long flags = 0;
  CUDA(cudaGraphExecGetFlags(executable, &flags));
  CHECK(flags == cudaGraphInstantiateFlagAutoFreeOnLaunch);
  for (int round = 0; round < 3; ++round) CUDA(cudaGraphLaunch(executable, stream));
  add<<<1, kCount, 0, stream>>>(memory, 1);
  int found[kCount];
  CUDA(cudaMemcpyAsync(found, memory, kBytes, cudaMemcpyDeviceToHost, stream));
  CUDA(cudaFreeAsync(memory, stream));
  CUDA(cudaStreamSynchronize(stream));
  for (int i = 0; i < kCount; ++i) CHECK(found[i] == 6 + i);
  CUDA(cudaGraphExecDestroy(executable));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaDeviceGraphMemTrim(0));
  unsigned long long used = 1;
  CUDA(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &used));
  CHECK(used == 0);
  std::puts("outlives");
}

// Memory that is allocated and freed in one capture, together with memory from outside of it.
void captured(cudaStream_t stream) {
  DeviceArray<int> out(1);
  out.clear();
  cudaGraph_t graph;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  int* memory;
  CUDA(cudaMallocAsync(&memory, kBytes, stream));
  set<<<1, kCount, 0, stream>>>(memory, 2);
  sum<<<1, 1, 0, stream>>>(memory, out.get());
  CUDA(cudaFreeAsync(memory, stream));
  CUDA(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t executable;
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  for (int round = 0; round < 5; ++round) CUDA(cudaGraphLaunch(executable, stream));
  CUDA(cudaStreamSynchronize(stream));
  int once = 0;
  for (int i = 0; i < kCount; ++i) once += 2 + i;
  CHECK(out.values()[0] == 5 * once);
  std::printf("captured %d\n", once);
  CUDA(cudaGraphExecDestroy(executable));
  CUDA(cudaGraphDestroy(graph));
}

void into_a_graph(cudaStream_t stream) {
  DeviceArray<int> values(kCount), other(kCount);
  values.clear();
  other.clear();
  cudaGraph_t graph;
  CUDA(cudaGraphCreate(&graph, 0));
  int *one = values.get(), *two = other.get(), first = 1;
  const cudaGraphNode_t root =
      kernel_node(graph, {}, reinterpret_cast<void*>(set), {&one, &first}, kCount);
  CUDA(cudaStreamBeginCaptureToGraph(stream, graph, &root, nullptr, 1,
                                     cudaStreamCaptureModeThreadLocal));
  add<<<1, kCount, 0, stream>>>(one, 10);
  cudaStreamCaptureStatus status;
  unsigned long long id = 0;
  cudaGraph_t into = nullptr;
  const cudaGraphNode_t* tips = nullptr;
  size_t count = 0;
  CUDA(cudaStreamGetCaptureInfo(stream, &status, &id, &into, &tips, nullptr, &count));
  CHECK(status == cudaStreamCaptureStatusActive && into == graph && count == 1 && tips[0] != root);
  // The next node depends on the root alone, then on all nodes.
  cudaGraphNode_t tip = tips[0], from_root = root;
  CUDA(cudaStreamUpdateCaptureDependencies(stream, &from_root, nullptr, 1,
                                           cudaStreamSetCaptureDependencies));
  set<<<1, kCount, 0, stream>>>(two, 7);
  CUDA(cudaStreamUpdateCaptureDependencies(stream, &tip, nullptr, 1,
                                           cudaStreamAddCaptureDependencies));
  CUDA(cudaMemcpyAsync(two, one, 4, cudaMemcpyDeviceToDevice, stream));
  cudaGraph_t ended = nullptr;
  CUDA(cudaStreamEndCapture(stream, &ended));
  CHECK(ended == graph);
  size_t nodes = 0, edges = 0;
  CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
  CUDA(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  std::printf("into a graph: %zu nodes, %zu edges\n", nodes, edges);
  // A node's attribute can be read back, and a node of an executable can be disabled.
  cudaKernelNodeAttrValue attribute{};
  attribute.priority = 0;
  CUDA(cudaGraphKernelNodeSetAttribute(root, cudaLaunchAttributePriority, &attribute));
  attribute.priority = 77;
  CUDA(cudaGraphKernelNodeGetAttribute(root, cudaLaunchAttributePriority, &attribute));
  CHECK(attribute.priority == 0);
  cudaGraphExec_t executable;
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  CUDA(cudaGraphUpload(executable, stream));
  CUDA(cudaGraphLaunch(executable, stream));
  CUDA(cudaStreamSynchronize(stream));
  std::vector<int> found = other.values();
  CHECK(values.values()[5] == 16 && found[0] == 11 && found[1] == 8);
  CUDA(cudaGraphNodeSetEnabled(executable, tip, 0));
  unsigned enabled = 1;
  CUDA(cudaGraphNodeGetEnabled(executable, tip, &enabled));
  CHECK(enabled == 0);
  CUDA(cudaGraphLaunch(executable, stream));
  CUDA(cudaStreamSynchronize(stream));
  CHECK(values.values()[5] == 6 && other.values()[0] == 1);
  CUDA(cudaGraphExecDestroy(executable));
  CUDA(cudaGraphDestroy(graph));
}

int main() {
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  outlives_the_launch(stream);
  captured(stream);
  into_a_graph(stream);
  CUDA(cudaStreamDestroy(stream));
}
