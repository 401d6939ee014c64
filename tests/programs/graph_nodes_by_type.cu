// Nodes of every type, added by the generic function; edges with data; parameters of nodes that
// allocate or wait; and a graph's picture.
#include <cstring>
#include <string>

#include <cuda.h>

#include "program.h"

#define CU(call)                                                                                 \
  do {                                                                                           \
    const CUresult error_ = (call);                                                              \
    if (error_ != CUDA_SUCCESS) fail(__FILE__, __LINE__, #call, std::to_string(error_).c_str()); \
  } while (0)

__global__ void set(int* values, int value) { values[threadIdx.x] = value; }
__global__ void add(int* values, const int* addends) {
  values[threadIdx.x] += addends[threadIdx.x];
}

constexpr int kCount = 32;

CUgraphNode add_node(CUgraph graph, std::vector<CUgraphNode> after, CUgraphNodeParams* params) {
  CUgraphNode node;
  const CUresult result = cuGraphAddNode(&node, graph, after.data(), nullptr, after.size(), params);
  if (result != CUDA_SUCCESS) {
    std::fprintf(stderr, "a node of type %d\n", params->type);
    CU(result);
  }
  return node;
}

// A picture of some hundred kilobytes.
void check_large_picture(const char* path) {
  CUgraph graph;
  CU(cuGraphCreate(&graph, 0));
  for (int i = 0; i < 4000; ++i) {
    CUgraphNode node;
    CU(cuGraphAddEmptyNode(&node, graph, nullptr, 0));
  }
  CU(cuGraphDebugDotPrint(graph, path, 0));
  CU(cuGraphDestroy(graph));
  std::FILE* file = std::fopen(path, "r");
  CHECK(file);
  std::string text(4u << 20, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  std::remove(path);
  CHECK(text.size() > 4000 * 20 && text.compare(0, 7, "digraph") == 0);
  CHECK(text[text.find_last_not_of(" \n")] == '}');
}

void all_types() {
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  DeviceArray<int> result(kCount);
  DeviceArray<unsigned> flags(2);
  flags.clear();
  CUgraph graph;
  CU(cuGraphCreate(&graph, 0));
  CUcontext context;
  CU(cuCtxGetCurrent(&context));

  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  params.alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.alloc.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  params.alloc.bytesize = kCount * sizeof(int);
  const CUgraphNode allocation = add_node(graph, {}, &params);
  const CUdeviceptr memory = params.alloc.dptr;
  CHECK(memory != 0);

  params = {};
  params.type = CU_GRAPH_NODE_TYPE_MEMSET;
  params.memset.dst = memory;
  params.memset.elementSize = 4;
  params.memset.value = 7;
  params.memset.width = kCount;
  params.memset.height = 1;
  params.memset.pitch = kCount * sizeof(int);
  params.memset.ctx = context;
  const CUgraphNode fill = add_node(graph, {allocation}, &params);

  // Writes one flag and waits for the other, which was written before it.
  const auto flag = reinterpret_cast<CUdeviceptr>(flags.get());
  CUstreamBatchMemOpParams operations[3]{};
  operations[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operations[0].writeValue.address = flag;
  operations[0].writeValue.value = 17;
  operations[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operations[1].writeValue.address = flag + 4;
  operations[1].writeValue.value = 4;
  operations[2].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operations[2].waitValue.address = flag + 4;
  operations[2].waitValue.value = 3;
  operations[2].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
  CUcontext of_stream;
  CU(cuStreamGetCtx(stream, &of_stream));
  CHECK(of_stream == context);
  CU(cuStreamGetCtx(nullptr, &of_stream));
  CHECK(of_stream == context);
  CUgreenCtx green;
  CU(cuStreamGetGreenCtx(stream, &green));
  CHECK(green == nullptr);
  params = {};
  params.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  params.memOp.ctx = context;
  params.memOp.count = 3;
  params.memOp.paramArray = operations;
  const CUgraphNode batch = add_node(graph, {fill}, &params);

  params = {};
  params.type = CU_GRAPH_NODE_TYPE_EMPTY;
  const CUgraphNode empty = add_node(graph, {batch}, &params);

  static int calls;
  calls = 0;
  params = {};
  params.type = CU_GRAPH_NODE_TYPE_HOST;
  params.host.fn = [](void* count) { ++*static_cast<int*>(count); };
  params.host.userData = &calls;
  const CUgraphNode host = add_node(graph, {empty}, &params);

  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = memory;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = reinterpret_cast<CUdeviceptr>(result.get());
  copy.WidthInBytes = kCount * sizeof(int);
  copy.Height = copy.Depth = 1;
  copy.srcPitch = copy.dstPitch = kCount * sizeof(int);
  copy.srcHeight = copy.dstHeight = 1;
  params = {};
  params.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  params.memcpy.copyCtx = context;
  params.memcpy.copyParams = copy;
  const CUgraphNode copied = add_node(graph, {host}, &params);

  CUfunction function;
  cudaFunction_t runtime_function;
  CUDA(cudaGetFuncBySymbol(&runtime_function, reinterpret_cast<const void*>(add)));
  function = runtime_function;
  int* values = result.get();
  const int* addends = reinterpret_cast<const int*>(memory);
  void* arguments[] = {&values, &addends};
  params = {};
  params.type = CU_GRAPH_NODE_TYPE_KERNEL;
  params.kernel.func = function;
  params.kernel.gridDimX = params.kernel.gridDimY = params.kernel.gridDimZ = 1;
  params.kernel.blockDimX = kCount;
  params.kernel.blockDimY = params.kernel.blockDimZ = 1;
  params.kernel.kernelParams = arguments;
  const CUgraphNode kernel = add_node(graph, {copied}, &params);

  CUevent event;
  CU(cuEventCreate(&event, CU_EVENT_DEFAULT));
  params = {};
  params.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
  params.eventRecord.event = event;
  const CUgraphNode recorded = add_node(graph, {kernel}, &params);

  params = {};
  params.type = CU_GRAPH_NODE_TYPE_MEM_FREE;
  params.free.dptr = memory;
  add_node(graph, {recorded}, &params);

  // The parameters that the nodes report.
  CUDA_MEM_ALLOC_NODE_PARAMS allocated{};
  CU(cuGraphMemAllocNodeGetParams(allocation, &allocated));
  CHECK(allocated.dptr == memory && allocated.bytesize == kCount * sizeof(int));
  CHECK(allocated.poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
        allocated.poolProps.location.id == 0 && allocated.accessDescCount == 0);
  CUDA_BATCH_MEM_OP_NODE_PARAMS said{};
  CU(cuGraphBatchMemOpNodeGetParams(batch, &said));
  CHECK(said.ctx == context && said.count == 3 && said.flags == 0);
  CHECK(said.paramArray[1].writeValue.address == flag + 4 &&
        said.paramArray[1].writeValue.value == 4);
  CHECK(said.paramArray[2].operation == CU_STREAM_MEM_OP_WAIT_VALUE_32);
  std::printf("wrong type: %d %d\n", cuGraphMemAllocNodeGetParams(fill, &allocated),
              cuGraphBatchMemOpNodeGetParams(fill, &said));
  CUgraphExec executable;
  CU(cuGraphInstantiate(&executable, graph, 0));
  for (int round = 1; round <= 3; ++round) {
    CUDA(cudaGraphLaunch(executable, stream));
    CUDA(cudaStreamSynchronize(stream));
    CHECK(calls == round);
    CHECK(result.values() == std::vector<int>(kCount, 14));
  }
  CHECK(flags.values() == (std::vector<unsigned>{17, 4}));
  CU(cuEventQuery(event));

  // Only the batch of the executable changes.
  operations[0].writeValue.value = 18;
  params = {};
  params.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  params.memOp.ctx = context;
  params.memOp.count = 3;
  params.memOp.paramArray = operations;
  CU(cuGraphExecNodeSetParams(executable, batch, &params));
  CUDA(cudaGraphLaunch(executable, stream));
  CUDA(cudaStreamSynchronize(stream));
  CHECK(flags.values()[0] == 18);
  CU(cuGraphBatchMemOpNodeGetParams(batch, &said));
  CHECK(said.paramArray[0].writeValue.value == 17);

  char path[] = "graph_nodes_by_type.dot";
  CUDA(cudaGraphDebugDotPrint(graph, path, cudaGraphDebugDotFlagsVerbose));
  std::FILE* file = std::fopen(path, "r");
  CHECK(file);
  char line[64] = "";
  CHECK(std::fgets(line, sizeof line, file) && std::strncmp(line, "digraph", 7) == 0);
  std::fclose(file);
  std::remove(path);
  check_large_picture(path);
  std::printf("no such folder: %d\n",
              cudaGraphDebugDotPrint(graph, "no/such/folder/graph.dot", 0) != cudaSuccess);
  (void)cudaGetLastError();
  CU(cuGraphExecDestroy(executable));
  CU(cuGraphDestroy(graph));
  CU(cuEventDestroy(event));
  CUDA(cudaStreamDestroy(stream));
  std::puts("all types");
}

// A programmatic edge between two kernels, given with the node and read back.
void edges() {
  DeviceArray<int> values(kCount);
  cudaFunction_t function;
  CUDA(cudaGetFuncBySymbol(&function, reinterpret_cast<const void*>(set)));
  CUgraph graph;
  CU(cuGraphCreate(&graph, 0));
  int* pointer = values.get();
  int value = 1;
  void* arguments[] = {&pointer, &value};
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_KERNEL;
  params.kernel.func = function;
  params.kernel.gridDimX = params.kernel.gridDimY = params.kernel.gridDimZ = 1;
  params.kernel.blockDimX = kCount;
  params.kernel.blockDimY = params.kernel.blockDimZ = 1;
  params.kernel.kernelParams = arguments;
  const CUgraphNode first = add_node(graph, {}, &params);
  CUgraphEdgeData edge{};
  edge.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
  edge.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
  CUgraphNode second;
  CU(cuGraphAddNode(&second, graph, &first, &edge, 1, &params));
  CUgraphNode from, to;
  CUgraphEdgeData found{};
  size_t count = 1;
  CU(cuGraphGetEdges(graph, &from, &to, &found, &count));
  CHECK(count == 1 && from == first && to == second);
  CHECK(found.type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC &&
        found.from_port == CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC);
  CU(cuGraphDestroy(graph));
  std::puts("edges");
}

int main() {
  CUDA(cudaFree(nullptr));
  all_types();
  edges();
}
