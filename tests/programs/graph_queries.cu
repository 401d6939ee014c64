// Queries about the nodes of captured and built graphs; copies of pageable memory in graphs; user
// objects.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include <cuda.h>

#include "program.h"

__global__ void scale(int* values, int factor, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] *= factor;
}

struct Fill {
  std::vector<int>* values;
  int next;
};

// Writes memory that no copy node reads: the driver chooses whether a copy node reads pageable
// memory when the graph is launched, or when the node runs.
void CUDART_CB fill(void* data) {
  Fill* fill = static_cast<Fill*>(data);
  for (int& value : *fill->values) value = fill->next++;
}

struct Sum {
  const std::vector<int>* values;
  long long total;
};

// Reads the bytes that an earlier copy wrote.
void CUDART_CB add_up(void* data) {
  Sum* sum = static_cast<Sum*>(data);
  for (int value : *sum->values) sum->total += value;
}

std::atomic<int> destroyed{0};
void CUDART_CB destroy(void* data) { destroyed += *static_cast<int*>(data); }

void wait_for_destroyed(int count) {
  for (int i = 0; i < 5000 && destroyed != count; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(destroyed == count);
}

__global__ void keep_handle(cudaGraphExec_t handle, unsigned long long* kept) {
  *kept = reinterpret_cast<unsigned long long>(handle);
}

void print_instantiation(const char* what, cudaGraph_t graph, unsigned long long flags) {
  cudaGraphExec_t executable = nullptr;
  cudaGraphInstantiateParams parameters{};
  parameters.flags = flags;
  const cudaError_t result = cudaGraphInstantiateWithParams(&executable, graph, &parameters);
  std::printf("%s: %s, result %d, node %s\n", what, cudaGetErrorName(result),
              static_cast<int>(parameters.result_out), parameters.errNode_out ? "named" : "none");
  (void)cudaGetLastError();
  if (result == cudaSuccess) CUDA(cudaGraphExecDestroy(executable));
}

// Kernels may launch such a graph by its handle, so the GPU must know the graph by the same handle.
void graphs_for_device_launch(cudaStream_t stream) {
  cudaGraph_t graph, outer;
  cudaGraphNode_t node;
  CUDA(cudaGraphCreate(&graph, 0));
  print_instantiation("nothing", graph, cudaGraphInstantiateFlagDeviceLaunch);
  cudaHostNodeParams host{};
  host.fn = destroy;
  CUDA(cudaGraphAddHostNode(&node, graph, nullptr, 0, &host));
  print_instantiation("host function", graph, cudaGraphInstantiateFlagDeviceLaunch);
  CUDA(cudaGraphDestroy(graph));

  DeviceArray<unsigned long long> kept(1);
  cudaMemsetParams zeros{};
  zeros.dst = kept.get();
  zeros.elementSize = 4;
  zeros.width = 2;
  zeros.height = 1;
  CUDA(cudaGraphCreate(&graph, 0));
  CUDA(cudaGraphAddMemsetNode(&node, graph, nullptr, 0, &zeros));
  CUDA(cudaGraphCreate(&outer, 0));
  CUDA(cudaGraphAddChildGraphNode(&node, outer, nullptr, 0, graph));
  print_instantiation("fill in a child", outer, cudaGraphInstantiateFlagDeviceLaunch);
  print_instantiation(
      "with automatic frees", outer,
      cudaGraphInstantiateFlagDeviceLaunch | cudaGraphInstantiateFlagAutoFreeOnLaunch);
  cudaGraphExec_t executable;
  CUDA(cudaGraphInstantiate(&executable, outer, cudaGraphInstantiateFlagDeviceLaunch));
  unsigned long long flags = 0, back = 0;
  CUDA(cudaGraphExecGetFlags(executable, &flags));
  CUDA(cudaGraphUpload(executable, stream));
  keep_handle<<<1, 1, 0, stream>>>(executable, kept.get());
  CUDA(cudaMemcpyAsync(&back, kept.get(), sizeof back, cudaMemcpyDeviceToHost, stream));
  CUDA(cudaGraphLaunch(executable, stream));
  CUDA(cudaStreamSynchronize(stream));
  CHECK(back == reinterpret_cast<unsigned long long>(executable));
  CUDA(cudaMemcpy(&back, kept.get(), sizeof back, cudaMemcpyDeviceToHost));
  std::printf("flags %llu, filled with %llu\n", flags, back);
  CUDA(cudaGraphExecDestroy(executable));
  CUDA(cudaGraphDestroy(outer));
  CUDA(cudaGraphDestroy(graph));
}

const char* name_of(cudaGraphNodeType type) {
  switch (type) {
    case cudaGraphNodeTypeKernel:
      return "kernel";
    case cudaGraphNodeTypeMemcpy:
      return "memcpy";
    case cudaGraphNodeTypeMemset:
      return "memset";
    case cudaGraphNodeTypeHost:
      return "host";
    case cudaGraphNodeTypeGraph:
      return "child";
    case cudaGraphNodeTypeEmpty:
      return "empty";
    case cudaGraphNodeTypeWaitEvent:
      return "wait";
    case cudaGraphNodeTypeEventRecord:
      return "record";
    default:
      return "other";
  }
}

// A node reports a kernel's parameters in the form in which they were last set.
void show_kernel(const char* how, cudaGraphNode_t node) {
  CUDA_KERNEL_NODE_PARAMS params = {};
  CHECK(cuGraphKernelNodeGetParams(node, &params) == CUDA_SUCCESS);
  CHECK(params.func != nullptr || params.kern != nullptr);
  const char* name = nullptr;
  CHECK((params.func ? cuFuncGetName(&name, params.func) : cuKernelGetName(&name, params.kern)) ==
        CUDA_SUCCESS);
  CHECK(std::strstr(name, "scale") != nullptr);
  int factor = 0, n = 0;
  if (params.extra) {
    CHECK(params.kernelParams == nullptr);
    const char* buffer = nullptr;
    size_t bytes = 0;
    for (void** at = params.extra; *at != CU_LAUNCH_PARAM_END; at += 2) {
      if (*at == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = static_cast<char*>(at[1]);
      if (*at == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *static_cast<size_t*>(at[1]);
    }
    CHECK(buffer != nullptr && bytes == 16);
    std::memcpy(&factor, buffer + 8, sizeof factor);
    std::memcpy(&n, buffer + 12, sizeof n);
  } else {
    factor = *static_cast<int*>(params.kernelParams[1]);
    n = *static_cast<int*>(params.kernelParams[2]);
  }
  std::printf("%s: %u x %u, factor %d, n %d, %s\n", how, params.gridDimX, params.blockDimX, factor,
              n, params.extra ? "packed" : "an array");
}

// The same by the runtime's query.
void show_kernel_by_runtime(const char* how, cudaGraphNode_t node) {
  cudaKernelNodeParams params = {};
  CUDA(cudaGraphKernelNodeGetParams(node, &params));
  CHECK(params.func == reinterpret_cast<void*>(scale));
  std::printf("%s: %u x %u, factor %d\n", how, params.gridDim.x, params.blockDim.x,
              *static_cast<int*>(params.kernelParams[1]));
}

// Kernel nodes of every origin: captured launches with an array or packed parameters, and nodes
// made by hand; before and after their parameters are set.
void kernel_nodes(int* values, cudaStream_t stream) {
  int factor = 2, n = 3;
  struct {
    int* values;
    int factor, n;
  } packed{values, 4, 5};
  size_t bytes = sizeof packed;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  cudaFunction_t function;
  CUDA(cudaGetFuncBySymbol(&function, reinterpret_cast<void*>(scale)));
  cudaGraph_t graph;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  scale<<<1, 32, 0, stream>>>(values, factor, n);
  CHECK(cuLaunchKernel(function, 2, 1, 1, 64, 1, 1, 0, stream, nullptr, extra) == CUDA_SUCCESS);
  void* arguments[] = {&values, &factor, &n};
  CHECK(cuLaunchKernel(function, 3, 1, 1, 96, 1, 1, 0, stream, arguments, nullptr) == CUDA_SUCCESS);
  CUDA(cudaStreamEndCapture(stream, &graph));
  std::vector<cudaGraphNode_t> nodes(3);
  for (cudaGraphNode_t& node : nodes) {
    size_t count = 1;
    if (&node == &nodes[0])
      CUDA(cudaGraphGetRootNodes(graph, &node, &count));
    else
      CUDA(cudaGraphNodeGetDependentNodes(*(&node - 1), &node, nullptr, &count));
    CHECK(count == 1);
  }
  show_kernel("captured", nodes[0]);
  show_kernel_by_runtime("captured", nodes[0]);
  show_kernel("captured packed", nodes[1]);
  show_kernel("captured function", nodes[2]);

  cudaGraphNode_t by_hand;
  cudaKernelNodeParams mine = {};
  mine.func = reinterpret_cast<void*>(scale);
  mine.gridDim = dim3(5);
  mine.blockDim = dim3(128);
  mine.kernelParams = arguments;
  CUDA(cudaGraphAddKernelNode(&by_hand, graph, nullptr, 0, &mine));
  show_kernel("by hand", by_hand);
  show_kernel_by_runtime("by hand", by_hand);
  CUDA_KERNEL_NODE_PARAMS raw = {};
  CHECK(cuGraphKernelNodeGetParams(by_hand, &raw) == CUDA_SUCCESS);
  raw.kernelParams = nullptr;
  raw.extra = extra;
  raw.gridDimX = 6;
  CHECK(cuGraphKernelNodeSetParams(by_hand, &raw) == CUDA_SUCCESS);
  show_kernel("set packed", by_hand);
  raw.kernelParams = arguments;
  raw.extra = nullptr;
  factor = 9;
  CHECK(cuGraphKernelNodeSetParams(by_hand, &raw) == CUDA_SUCCESS);
  show_kernel("set again", by_hand);

  // All of them work.
  cudaGraphExec_t exec;
  CUDA(cudaMemset(values, 0, 4));
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  raw.extra = extra;
  raw.kernelParams = nullptr;
  CHECK(cuGraphExecKernelNodeSetParams(exec, by_hand, &raw) == CUDA_SUCCESS);
  CUDA(cudaGraphLaunch(exec, stream));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaGraphExecDestroy(exec));
  CUDA(cudaGraphDestroy(graph));
}

// Copies of an executable change from page-locked to pageable memory and back.
void executable_copies(cudaStream_t stream) {
  const int n = 256;
  DeviceArray<int> device(n);
  int *locked_in, *locked_out;
  CUDA(cudaMallocHost(&locked_in, n * sizeof(int)));
  CUDA(cudaMallocHost(&locked_out, n * sizeof(int)));
  std::fill(locked_in, locked_in + n, 1);
  std::vector<int> in(n, 2), out(n, 0);
  cudaGraph_t graph;
  CUDA(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t there, back;
  CUDA(cudaGraphAddMemcpyNode1D(&there, graph, nullptr, 0, device.get(), locked_in, device.bytes(),
                                cudaMemcpyHostToDevice));
  CUDA(cudaGraphAddMemcpyNode1D(&back, graph, &there, 1, locked_out, device.get(), device.bytes(),
                                cudaMemcpyDeviceToHost));
  cudaGraphExec_t exec;
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  CUDA(cudaGraphLaunch(exec, stream));
  CUDA(cudaStreamSynchronize(stream));
  std::printf("page-locked %d\n", locked_out[n - 1]);
  CUDA(cudaGraphExecMemcpyNodeSetParams1D(exec, there, device.get(), in.data(), device.bytes(),
                                          cudaMemcpyHostToDevice));
  CUDA(cudaGraphExecMemcpyNodeSetParams1D(exec, back, out.data(), device.get(), device.bytes(),
                                          cudaMemcpyDeviceToHost));
  for (int round = 0; round < 3; ++round) {
    std::fill(in.begin(), in.end(), 20 + round);
    CUDA(cudaGraphLaunch(exec, stream));
    CUDA(cudaStreamSynchronize(stream));
    std::printf("pageable %d, page-locked %d\n", out[n - 1], locked_out[0]);
  }
  std::fill(locked_in, locked_in + n, 3);
  CUDA(cudaGraphExecMemcpyNodeSetParams1D(exec, there, device.get(), locked_in, device.bytes(),
                                          cudaMemcpyHostToDevice));
  CUDA(cudaGraphLaunch(exec, stream));
  CUDA(cudaStreamSynchronize(stream));
  std::printf("one of each %d\n", out[0]);
  CUDA(cudaGraphExecDestroy(exec));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaFreeHost(locked_in));
  CUDA(cudaFreeHost(locked_out));
}

int main() {
  int n = 1000;
  DeviceArray<int> device(n);
  std::vector<int> in(n, 1), out(n, -1);
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  kernel_nodes(device.get(), stream);

  // A capture of a host function, copies of pageable memory in both directions, and a host function
  // that reads the result.
  std::vector<int> scratch(n);
  Fill filler{&scratch, 100};
  Sum sum{&out, 0};
  int factor = 3;
  cudaGraph_t graph;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CUDA(cudaLaunchHostFunc(stream, fill, &filler));
  CUDA(cudaMemcpyAsync(device.get(), in.data(), device.bytes(), cudaMemcpyHostToDevice, stream));
  scale<<<4, 256, 0, stream>>>(device.get(), factor, n);
  CUDA(cudaMemcpyAsync(out.data(), device.get(), device.bytes(), cudaMemcpyDeviceToHost, stream));
  CUDA(cudaLaunchHostFunc(stream, add_up, &sum));
  CUDA(cudaMemsetAsync(device.get(), 0x11, 64, stream));
  CUDA(cudaStreamEndCapture(stream, &graph));
  size_t count = 0;
  CUDA(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  CUDA(cudaGraphGetNodes(graph, nodes.data(), &count));
  cudaGraphNode_t kernel = nullptr, copy_in = nullptr;
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type;
    CUDA(cudaGraphNodeGetType(node, &type));
    std::printf("%s", name_of(type));
    if (type == cudaGraphNodeTypeKernel) {
      kernel = node;
      CUDA_KERNEL_NODE_PARAMS params = {};
      CHECK(cuGraphKernelNodeGetParams(node, &params) == CUDA_SUCCESS);
      CHECK(*static_cast<int**>(params.kernelParams[0]) == device.get());
      std::printf(" %u x %u, factor %d, n %d", params.gridDimX, params.blockDimX,
                  *static_cast<int*>(params.kernelParams[1]),
                  *static_cast<int*>(params.kernelParams[2]));
    } else if (type == cudaGraphNodeTypeHost) {
      cudaHostNodeParams params = {};
      CUDA(cudaGraphHostNodeGetParams(node, &params));
      std::printf(" %s", params.fn == fill && params.userData == &filler  ? "fill"
                         : params.fn == add_up && params.userData == &sum ? "add up"
                                                                          : "?");
    } else if (type == cudaGraphNodeTypeMemcpy) {
      CUDA_MEMCPY3D copy = {};
      CHECK(cuGraphMemcpyNodeGetParams(node, &copy) == CUDA_SUCCESS);
      std::printf(" %zu bytes", copy.WidthInBytes * copy.Height * copy.Depth);
      if (copy.srcMemoryType == CU_MEMORYTYPE_HOST && copy.srcHost == in.data()) {
        copy_in = node;
        std::printf(" in");
      }
      if (copy.dstMemoryType == CU_MEMORYTYPE_HOST && copy.dstHost == out.data())
        std::printf(" out");
    } else if (type == cudaGraphNodeTypeMemset) {
      cudaMemsetParams params = {};
      CUDA(cudaGraphMemsetNodeGetParams(node, &params));
      CHECK(params.dst == device.get() && params.elementSize * params.width == 64);
    }
    std::printf("\n");
  }
  CHECK(kernel != nullptr && copy_in != nullptr);
  cudaGraphExec_t exec;
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  for (int round = 0; round < 3; ++round) CUDA(cudaGraphLaunch(exec, stream));
  CUDA(cudaStreamSynchronize(stream));
  std::printf("sum %lld, last %d, filled to %d\n", sum.total, out.back(), scratch.back());
  CUDA(cudaGraphGetNodes(graph, nullptr, &count));
  CHECK(count == nodes.size());  // instantiation adds no nodes

  // Other memory, first in the executable alone, then also in the graph.
  std::vector<int> other(n, 7);
  CUDA(cudaGraphExecMemcpyNodeSetParams1D(exec, copy_in, device.get(), other.data(), device.bytes(),
                                          cudaMemcpyHostToDevice));
  CUDA(cudaGraphLaunch(exec, stream));
  CUDA(cudaStreamSynchronize(stream));
  std::printf("elsewhere %d\n", out.front());
  CUDA(cudaGraphMemcpyNodeSetParams1D(copy_in, device.get(), other.data(), device.bytes(),
                                      cudaMemcpyHostToDevice));
  cudaGraphExecUpdateResultInfo info;
  std::fill(other.begin(), other.end(), 8);
  CUDA(cudaGraphExecUpdate(exec, graph, &info));
  CUDA(cudaGraphLaunch(exec, stream));
  CUDA(cudaStreamSynchronize(stream));
  std::printf("updated %d\n", out.front());
  CUDA_KERNEL_NODE_PARAMS params = {};
  CHECK(cuGraphKernelNodeGetParams(kernel, &params) == CUDA_SUCCESS);
  int ten = 10;
  void* arguments[] = {params.kernelParams[0], &ten, params.kernelParams[2]};
  params.kernelParams = arguments;
  CHECK(cuGraphKernelNodeSetParams(kernel, &params) == CUDA_SUCCESS);
  CUDA(cudaGraphExecUpdate(exec, graph, &info));
  CUDA(cudaGraphLaunch(exec, stream));
  CUDA(cudaStreamSynchronize(stream));
  std::printf("with factor 10: %d\n", out.front());

  executable_copies(stream);

  // A pitched piece of pageable memory, both ways; the rest must not change.
  std::vector<int> picture(16 * 16), result(16 * 16, 5);
  for (int i = 0; i < 256; ++i) picture[i] = i;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  CUDA(cudaMemcpy2DAsync(device.get(), 32, &picture[2 * 16 + 3], 64, 32, 4, cudaMemcpyHostToDevice,
                         stream));
  CUDA(cudaMemcpy2DAsync(&result[5 * 16 + 1], 64, device.get(), 32, 32, 4, cudaMemcpyDeviceToHost,
                         stream));
  cudaGraph_t pictures;
  CUDA(cudaStreamEndCapture(stream, &pictures));

  // As a child graph, in a clone, after an event.
  cudaGraph_t outer, clone;
  CUDA(cudaGraphCreate(&outer, 0));
  cudaGraphNode_t child, record;
  cudaEvent_t event, found_event;
  CUDA(cudaEventCreate(&event));
  CUDA(cudaGraphAddChildGraphNode(&child, outer, nullptr, 0, pictures));
  CUDA(cudaGraphAddEventRecordNode(&record, outer, &child, 1, event));
  CUDA(cudaGraphEventRecordNodeGetEvent(record, &found_event));
  CHECK(found_event == event);
  cudaGraph_t inside;
  CUDA(cudaGraphChildGraphNodeGetGraph(child, &inside));
  CUDA(cudaGraphGetNodes(inside, nullptr, &count));
  std::printf("inside %zu\n", count);
  CUDA(cudaGraphClone(&clone, outer));
  CUDA(cudaGraphDestroy(pictures));
  CUDA(cudaGraphDestroy(outer));
  cudaGraphExec_t clone_exec;
  CUDA(cudaGraphInstantiate(&clone_exec, clone, 0));
  CUDA(cudaGraphLaunch(clone_exec, stream));
  CUDA(cudaEventSynchronize(event));
  CUDA(cudaStreamSynchronize(stream));
  print_digest("picture", result);
  CUDA(cudaGraphGetNodes(clone, nullptr, &count));
  CHECK(count == 2);

  // User objects live as long as the graph and everything that was made from it.
  static int one = 1, more = 10;
  cudaUserObject_t first, second;
  CUDA(cudaUserObjectCreate(&first, &one, destroy, 2, cudaUserObjectNoDestructorSync));
  CUDA(cudaUserObjectCreate(&second, &more, destroy, 1, cudaUserObjectNoDestructorSync));
  CUDA(cudaGraphRetainUserObject(clone, first, 1, cudaGraphUserObjectMove));
  CUDA(cudaGraphRetainUserObject(clone, second, 1, 0));
  cudaGraphExec_t holder;
  CUDA(cudaGraphInstantiate(&holder, clone, 0));
  CUDA(cudaUserObjectRelease(first, 1));
  CUDA(cudaUserObjectRelease(second, 1));
  CUDA(cudaGraphReleaseUserObject(clone, second, 1));
  CUDA(cudaGraphDestroy(clone));
  CUDA(cudaStreamSynchronize(stream));
  CHECK(destroyed == 0);
  CUDA(cudaGraphExecDestroy(holder));
  wait_for_destroyed(11);
  std::printf("destroyed %d\n", destroyed.load());

  graphs_for_device_launch(stream);

  CUDA(cudaGraphExecDestroy(exec));
  CUDA(cudaGraphExecDestroy(clone_exec));
  CUDA(cudaGraphDestroy(graph));
}
