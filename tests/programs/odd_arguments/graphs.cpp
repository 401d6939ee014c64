#include <initializer_list>

#include "show.h"

namespace {

void nothing(void*) {}

CUDA_MEMSET_NODE_PARAMS fill_params(CUdeviceptr memory) {
  CUDA_MEMSET_NODE_PARAMS params{};
  params.dst = memory;
  params.elementSize = 4;
  params.width = 4;
  params.height = 1;
  return params;
}

// A graph of two nodes: first -> last.
struct Pair {
  CUgraph graph = nullptr;
  CUgraphNode first = nullptr, last = nullptr;
  Pair() {
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddEmptyNode(&first, graph, nullptr, 0));
    CU(cuGraphAddEmptyNode(&last, graph, &first, 1));
  }
  ~Pair() { cuGraphDestroy(graph); }
};

// The lists of nodes and edges. Their arrays have room for `room` entries.
void lists(const Pair& pair, size_t room) {
  VALUE(room);
  CUgraphNode from[4]{}, to[4]{};
  CUgraphEdgeData data[4]{};
  size_t count = room;
  SHOW(cuGraphGetNodes(pair.graph, from, &count));
  VALUE(count);
  VALUE(from[2] == nullptr);
  count = room;
  SHOW(cuGraphGetRootNodes(pair.graph, from, &count));
  VALUE(count);
  count = room;
  SHOW(cuGraphGetEdges(pair.graph, from, to, nullptr, &count));
  VALUE(count);
  count = room;
  SHOW(cuGraphGetEdges(pair.graph, from, to, data, &count));
  VALUE(count);
  count = room;
  SHOW(cuGraphNodeGetDependencies(pair.last, from, nullptr, &count));
  VALUE(count);
  count = room;
  SHOW(cuGraphNodeGetDependencies(pair.last, from, data, &count));
  VALUE(count);
  count = room;
  SHOW(cuGraphNodeGetDependentNodes(pair.first, from, nullptr, &count));
  VALUE(count);
  count = room;
  SHOW(cuGraphNodeGetDependencies(pair.first, from, nullptr, &count));
  VALUE(count);
  count = room;
  SHOW(cuGraphNodeGetDependentNodes(pair.last, from, nullptr, &count));
  VALUE(count);
}

void empty_lists() {
  CUgraph empty = nullptr;
  CU(cuGraphCreate(&empty, 0));
  CUgraphNode from[1]{}, to[1]{};
  for (const size_t room : {size_t{0}, size_t{1}}) {
    VALUE(room);
    size_t count = room;
    SHOW(cuGraphGetNodes(empty, from, &count));
    VALUE(count);
    count = room;
    SHOW(cuGraphGetRootNodes(empty, from, &count));
    VALUE(count);
    count = room;
    SHOW(cuGraphGetEdges(empty, from, to, nullptr, &count));
    VALUE(count);
  }
  CU(cuGraphDestroy(empty));
}

void executables(const World& w, const Pair& pair) {
  CUgraphExec executable = nullptr;
  SHOW(cuGraphInstantiate(&executable, pair.graph, 0x100));
  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  params.flags = 0x100;
  SHOW(cuGraphInstantiateWithParams(&executable, pair.graph, &params));
  VALUE(params.result_out);
  SHOW(cuGraphInstantiate(&executable, nullptr, 0));
  CU(cuGraphInstantiate(&executable, pair.graph, 0));
  SHOW(cuGraphExecDestroy(nullptr));
  SHOW(cuGraphLaunch(nullptr, w.stream));
  SHOW(cuGraphUpload(nullptr, w.stream));
  cuuint64_t flags = 5;
  SHOW(cuGraphExecGetFlags(nullptr, &flags));
  CUgraphExecUpdateResultInfo info{};
  SHOW(cuGraphExecUpdate(nullptr, pair.graph, &info));
  SHOW(cuGraphExecUpdate(executable, nullptr, &info));
  unsigned enabled = 5;
  SHOW(cuGraphNodeSetEnabled(executable, pair.first, 0));
  SHOW(cuGraphNodeGetEnabled(executable, pair.first, &enabled));
  SHOW(cuGraphNodeSetEnabled(executable, nullptr, 0));
  CU(cuGraphExecDestroy(executable));
}

void user_objects(const Pair& pair) {
  CUuserObject object = nullptr;
  constexpr auto kFlag = CU_USER_OBJECT_NO_DESTRUCTOR_SYNC;
  SHOW(cuUserObjectCreate(&object, nullptr, nothing, 0, kFlag));
  SHOW(cuUserObjectCreate(&object, nullptr, nothing, 1, 0));
  SHOW(cuUserObjectCreate(&object, nullptr, nothing, 1, 0x100));
  CU(cuUserObjectCreate(&object, nullptr, nothing, 1, kFlag));
  SHOW(cuUserObjectRetain(object, 0));
  SHOW(cuUserObjectRelease(object, 0));
  SHOW(cuUserObjectRetain(nullptr, 1));
  SHOW(cuUserObjectRelease(nullptr, 1));
  SHOW(cuGraphRetainUserObject(pair.graph, object, 0, 0));
  SHOW(cuGraphRetainUserObject(pair.graph, object, 1, 0x100));
  SHOW(cuGraphRetainUserObject(pair.graph, nullptr, 1, 0));
  SHOW(cuGraphReleaseUserObject(pair.graph, object, 0));
  CU(cuUserObjectRelease(object, 1));
}

}  // namespace

void graphs(const World& w) {
  const Pair pair;
  CUgraph graph = nullptr;
  SHOW(cuGraphCreate(&graph, 1));
  SHOW(cuGraphDestroy(nullptr));
  SHOW(cuGraphClone(&graph, nullptr));
  lists(pair, 0);
  lists(pair, 1);
  lists(pair, 4);
  empty_lists();
  SHOW(cuGraphAddDependencies(pair.graph, nullptr, nullptr, nullptr, 0));
  SHOW(cuGraphAddDependencies(pair.graph, &pair.first, &pair.first, nullptr, 1));
  SHOW(cuGraphAddDependencies(pair.graph, &pair.first, &pair.last, nullptr, 1));
  SHOW(cuGraphAddDependencies(pair.graph, &pair.last, &pair.first, nullptr, 1));
  SHOW(cuGraphRemoveDependencies(pair.graph, nullptr, nullptr, nullptr, 0));
  SHOW(cuGraphRemoveDependencies(pair.graph, &pair.last, &pair.first, nullptr, 1));
  CUgraphEdgeData edge{};
  edge.type = 99;
  SHOW(cuGraphRemoveDependencies(pair.graph, &pair.first, &pair.last, &edge, 1));
  CUgraphNode node = nullptr;
  CUgraphNodeType type = odd<CUgraphNodeType>();
  SHOW(cuGraphNodeGetType(nullptr, &type));
  SHOW(cuGraphNodeFindInClone(&node, pair.first, pair.graph));
  SHOW(cuGraphNodeFindInClone(&node, nullptr, pair.graph));
  SHOW(cuGraphDestroyNode(nullptr));
  SHOW(cuGraphDebugDotPrint(pair.graph, "", 0));
  SHOW(cuGraphDebugDotPrint(pair.graph, "/nonexistent/file", 0));
  SHOW(cuGraphDebugDotPrint(pair.graph, "/dev/null", 1u << 30));
  executables(w, pair);
  user_objects(pair);
}

void graph_nodes(const World& w) {
  const Pair pair;
  CUgraph g = pair.graph;
  CUgraphNode node = nullptr;
  CUdeviceptr address = 0;
  CU(cuMemAlloc(&address, 4096));
  SHOW(cuGraphAddEmptyNode(&node, nullptr, nullptr, 0));
  CUDA_MEMSET_NODE_PARAMS fill = fill_params(address);
  fill.elementSize = 3;
  SHOW(cuGraphAddMemsetNode(&node, g, nullptr, 0, &fill, w.context));
  fill = fill_params(address);
  fill.width = 0;
  SHOW(cuGraphAddMemsetNode(&node, g, nullptr, 0, &fill, w.context));
  fill = fill_params(address);
  fill.height = 0;
  SHOW(cuGraphAddMemsetNode(&node, g, nullptr, 0, &fill, w.context));
  fill = fill_params(0);
  SHOW(cuGraphAddMemsetNode(&node, g, nullptr, 0, &fill, w.context));
  fill = fill_params(address);
  SHOW(cuGraphAddMemsetNode(&node, g, nullptr, 0, &fill, nullptr));
  CUDA_MEMCPY3D copy{};
  SHOW(cuGraphAddMemcpyNode(&node, g, nullptr, 0, &copy, w.context));
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = address;
  copy.dstDevice = address + 2048;
  SHOW(cuGraphAddMemcpyNode(&node, g, nullptr, 0, &copy, w.context));
  copy.WidthInBytes = 4;
  copy.Height = copy.Depth = 1;
  copy.srcMemoryType = odd<CUmemorytype>();
  SHOW(cuGraphAddMemcpyNode(&node, g, nullptr, 0, &copy, w.context));
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  SHOW(cuGraphAddMemcpyNode(&node, g, nullptr, 0, &copy, nullptr));
  CUDA_KERNEL_NODE_PARAMS kernel{};
  SHOW(cuGraphAddKernelNode(&node, g, nullptr, 0, &kernel));
  kernel.func = w.function;
  SHOW(cuGraphAddKernelNode(&node, g, nullptr, 0, &kernel));
  kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = 1;
  kernel.blockDimX = kernel.blockDimY = kernel.blockDimZ = 1;
  CU(cuGraphAddKernelNode(&node, g, nullptr, 0, &kernel));
  CUkernelNodeAttrValue value{};
  SHOW(cuGraphKernelNodeGetAttribute(node, odd<CUkernelNodeAttrID>(), &value));
  SHOW(cuGraphKernelNodeGetAttribute(node, odd<CUkernelNodeAttrID>(0), &value));
  SHOW(cuGraphKernelNodeSetAttribute(node, odd<CUkernelNodeAttrID>(), &value));
  SHOW(cuGraphKernelNodeCopyAttributes(node, nullptr));
  SHOW(cuGraphKernelNodeGetParams(pair.first, &kernel));
  SHOW(cuGraphMemsetNodeGetParams(node, &fill));
  CUDA_HOST_NODE_PARAMS host{};
  SHOW(cuGraphAddHostNode(&node, g, nullptr, 0, &host));
  SHOW(cuGraphAddEventRecordNode(&node, g, nullptr, 0, nullptr));
  SHOW(cuGraphAddEventWaitNode(&node, g, nullptr, 0, nullptr));
  CUDA_MEM_ALLOC_NODE_PARAMS allocation{};
  SHOW(cuGraphAddMemAllocNode(&node, g, nullptr, 0, &allocation));
  allocation.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  allocation.poolProps.location = w.here;
  SHOW(cuGraphAddMemAllocNode(&node, g, nullptr, 0, &allocation));
  allocation.bytesize = 4096;
  allocation.poolProps.location.type = odd<CUmemLocationType>();
  SHOW(cuGraphAddMemAllocNode(&node, g, nullptr, 0, &allocation));
  SHOW(cuGraphAddMemFreeNode(&node, g, nullptr, 0, 0));
  SHOW(cuGraphAddMemFreeNode(&node, g, nullptr, 0, address));
  CUDA_BATCH_MEM_OP_NODE_PARAMS batch{};
  CUstreamBatchMemOpParams operation{};
  batch.ctx = w.context;
  batch.paramArray = &operation;
  SHOW(cuGraphAddBatchMemOpNode(&node, g, nullptr, 0, &batch));
  batch.count = 1;
  operation.operation = odd<CUstreamBatchMemOpType>();
  SHOW(cuGraphAddBatchMemOpNode(&node, g, nullptr, 0, &batch));
  CUgraphNodeParams any{};
  SHOW(cuGraphAddNode(&node, g, nullptr, nullptr, 0, &any));
  any.type = odd<CUgraphNodeType>();
  SHOW(cuGraphAddNode(&node, g, nullptr, nullptr, 0, &any));
  any.type = CU_GRAPH_NODE_TYPE_MEMSET;
  SHOW(cuGraphNodeSetParams(pair.first, &any));
  any.type = CU_GRAPH_NODE_TYPE_EMPTY;
  any.reserved0[0] = 1;
  SHOW(cuGraphAddNode(&node, g, nullptr, nullptr, 0, &any));
  CUgraphConditionalHandle condition = 0;
  SHOW(cuGraphConditionalHandleCreate(&condition, g, w.context, 0, 0x100));
  SHOW(cuGraphConditionalHandleCreate(&condition, nullptr, w.context, 0, 0));
  any = {};
  any.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  any.conditional.type = CU_GRAPH_COND_TYPE_IF;
  any.conditional.size = 1;
  any.conditional.ctx = w.context;
  SHOW(cuGraphAddNode(&node, g, nullptr, nullptr, 0, &any));
  CU(cuGraphConditionalHandleCreate(&condition, g, w.context, 0, 0));
  any.conditional.handle = condition;
  any.conditional.size = 0;
  SHOW(cuGraphAddNode(&node, g, nullptr, nullptr, 0, &any));
  any.conditional.size = 1;
  any.conditional.type = odd<CUgraphConditionalNodeType>();
  SHOW(cuGraphAddNode(&node, g, nullptr, nullptr, 0, &any));
  CU(cuMemFree(address));
}
