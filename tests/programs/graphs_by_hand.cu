// Graphs built node by node: kernels, copies, fills, host functions, children, events; and later
// changes of them.
#include "program.h"

__global__ void add(int* values, int amount, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] += amount * (i + 1);
}

void CUDART_CB count(void* counter) { ++*static_cast<int*>(counter); }

int main() {
  int n = 100, amount = 5, calls = 0;
  DeviceArray<int> values(n), copy(n);
  int* pointer = values.get();
  std::vector<int> host(n, -1);

  cudaGraph_t graph;
  CUDA(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t fill, kernel, first_copy, second_copy, host_call, nothing;
  cudaMemsetParams fill_parameters = {};
  fill_parameters.dst = values.get();
  fill_parameters.value = 3;
  fill_parameters.elementSize = 4;
  fill_parameters.width = n;
  fill_parameters.height = 1;
  CUDA(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &fill_parameters));

  void* arguments[] = {&pointer, &amount, &n};
  cudaKernelNodeParams launch = {};
  launch.func = reinterpret_cast<void*>(add);
  launch.gridDim = dim3(2);
  launch.blockDim = dim3(64);
  launch.kernelParams = arguments;
  CUDA(cudaGraphAddKernelNode(&kernel, graph, &fill, 1, &launch));
  CUDA(cudaGraphAddMemcpyNode1D(&first_copy, graph, &kernel, 1, copy.get(), values.get(),
                                values.bytes(), cudaMemcpyDeviceToDevice));
  cudaMemcpy3DParms shape = {};
  shape.srcPtr = make_cudaPitchedPtr(copy.get(), values.bytes(), values.bytes(), 1);
  shape.dstPtr = make_cudaPitchedPtr(host.data(), values.bytes(), values.bytes(), 1);
  shape.extent = make_cudaExtent(values.bytes(), 1, 1);
  shape.kind = cudaMemcpyDeviceToHost;
  CUDA(cudaGraphAddMemcpyNode(&second_copy, graph, nullptr, 0, &shape));
  CUDA(cudaGraphAddDependencies(graph, &first_copy, &second_copy, nullptr, 1));
  cudaHostNodeParams call = {count, &calls};
  CUDA(cudaGraphAddHostNode(&host_call, graph, &second_copy, 1, &call));
  CUDA(cudaGraphAddEmptyNode(&nothing, graph, &host_call, 1));

  amount = 999;  // the node took a copy
  cudaGraphExec_t exec;
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaGraphLaunch(exec, stream));
  CUDA(cudaStreamSynchronize(stream));
  for (int i = 0; i < n; ++i) CHECK(host[i] == 3 + 5 * (i + 1));
  CHECK(calls == 1);
  print_digest("first", host);

  amount = 7;
  CUDA(cudaGraphExecKernelNodeSetParams(exec, kernel, &launch));
  fill_parameters.value = 1000;
  CUDA(cudaGraphExecMemsetNodeSetParams(exec, fill, &fill_parameters));
  CUDA(cudaGraphLaunch(exec, stream));
  CUDA(cudaGraphLaunch(exec, stream));
  CUDA(cudaStreamSynchronize(stream));
  for (int i = 0; i < n; ++i) CHECK(host[i] == 1000 + 7 * (i + 1));
  CHECK(calls == 3);
  print_digest("changed", host);

  cudaGraphNodeType type;
  CUDA(cudaGraphNodeGetType(kernel, &type));
  CHECK(type == cudaGraphNodeTypeKernel);
  CUDA(cudaGraphNodeGetType(nothing, &type));
  CHECK(type == cudaGraphNodeTypeEmpty);
  cudaGraphNode_t before[4];
  size_t before_count = 4;
  CUDA(cudaGraphNodeGetDependencies(second_copy, before, nullptr, &before_count));
  CHECK(before_count == 1 && before[0] == first_copy);
  cudaGraphNode_t roots[4];
  size_t root_count = 4;
  CUDA(cudaGraphGetRootNodes(graph, roots, &root_count));
  CHECK(root_count == 1 && roots[0] == fill);

  // A child graph, twice in a row, around an event.
  cudaGraph_t outer;
  CUDA(cudaGraphCreate(&outer, 0));
  cudaGraphNode_t child, again, record;
  cudaEvent_t event;
  CUDA(cudaEventCreate(&event));
  CUDA(cudaGraphAddChildGraphNode(&child, outer, nullptr, 0, graph));
  CUDA(cudaGraphAddEventRecordNode(&record, outer, &child, 1, event));
  CUDA(cudaGraphAddChildGraphNode(&again, outer, &record, 1, graph));
  cudaGraphExec_t outer_exec;
  CUDA(cudaGraphInstantiate(&outer_exec, outer, 0));
  CUDA(cudaGraphLaunch(outer_exec, stream));
  CUDA(cudaEventSynchronize(event));
  CUDA(cudaStreamSynchronize(stream));
  CHECK(calls == 5);
  for (int i = 0; i < n; ++i) CHECK(host[i] == 3 + 5 * (i + 1));

  // A circle cannot be instantiated.
  CUDA(cudaGraphAddDependencies(outer, &again, &child, nullptr, 1));
  cudaGraphExec_t impossible = nullptr;
  EXPECT(cudaErrorInvalidValue, cudaGraphInstantiate(&impossible, outer, 0));
  cudaGetLastError();
  CUDA(cudaGraphExecDestroy(exec));
  CUDA(cudaGraphExecDestroy(outer_exec));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaGraphDestroy(outer));
  std::printf("calls %d\n", calls);
}
