// Nodes of graphs: creation, reading and changing of their parameters, in graphs and in executable
// graphs. Results of invalid calls are those of driver 580 on an H200.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include <unistd.h>

#include "tests/unit/softgpu/driver/graph_fixture.h"

namespace softgpu::driver {
namespace {

class GraphNodeTest : public GraphFixture {
 protected:
  // Parameters of a copy of one word between pinned words.
  CUDA_MEMCPY3D word_copy(int to, int from) const {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    copy.srcDevice = word(from);
    copy.dstDevice = word(to);
    copy.WidthInBytes = sizeof(uint32_t);
    copy.Height = copy.Depth = 1;
    return copy;
  }
};

TEST_F(GraphNodeTest, EveryKindOfNode) {
  CUdeviceptr memory = 0;
  CUDA_OK(cuMemAlloc_v2(&memory, 64));
  const CUDA_MEMSET_NODE_PARAMS fill{memory, 0, 3, 4, 4, 1};
  CUgraphNode filled = nullptr, copied = nullptr, called = nullptr, written = nullptr;
  CUDA_OK(cuGraphAddMemsetNode(&filled, graph_, nullptr, 0, &fill, context_));
  const CUgraphNode shifted_node = kernel(graph_, shift_, memory, 1, {filled});
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = memory;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = words_;
  copy.WidthInBytes = 8;
  copy.Height = copy.Depth = 1;
  CUDA_OK(cuGraphAddMemcpyNode(&copied, graph_, &shifted_node, 1, &copy, context_));
  CUDA_HOST_NODE_PARAMS host{[](void* data) {
                               auto* words = static_cast<uint32_t*>(data);
                               words[2] = words[0] + words[1];
                             },
                             words_};
  CUDA_OK(cuGraphAddHostNode(&called, graph_, &copied, 1, &host));
  CUstreamBatchMemOpParams operation{};
  operation.writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, word(3), {9}, 0, 0};
  CUDA_BATCH_MEM_OP_NODE_PARAMS batch{context_, 1, &operation, 0};
  CUDA_OK(cuGraphAddBatchMemOpNode(&written, graph_, &called, 1, &batch));
  const CUevent done = event();
  CUgraphNode recorded = nullptr;
  CUDA_OK(cuGraphAddEventRecordNode(&recorded, graph_, &written, 1, done));
  const CUgraphExec exec = instantiate(graph_);
  CUDA_OK(cuGraphLaunch(exec, s_));
  CUDA_OK(cuEventSynchronize(done));
  EXPECT_EQ(read(0), shifted(3, {1}));
  EXPECT_EQ(read(1), 3u);
  EXPECT_EQ(read(2), shifted(3, {1}) + 3);
  EXPECT_EQ(read(3), 9u);
  CUDA_OK(cuStreamSynchronize(s_));

  // Parameters are read back.
  CUDA_MEMSET_NODE_PARAMS fill_back{};
  CUDA_OK(cuGraphMemsetNodeGetParams(filled, &fill_back));
  EXPECT_EQ(fill_back.dst, memory);
  EXPECT_EQ(fill_back.value, 3u);
  EXPECT_EQ(fill_back.width, 4u);
  CUDA_MEMCPY3D copy_back{};
  CUDA_OK(cuGraphMemcpyNodeGetParams(copied, &copy_back));
  EXPECT_EQ(copy_back.srcDevice, memory);
  EXPECT_EQ(copy_back.WidthInBytes, 8u);
  CUDA_KERNEL_NODE_PARAMS_v2 kernel_back{};
  CUDA_OK(cuGraphKernelNodeGetParams_v2(shifted_node, &kernel_back));
  EXPECT_EQ(kernel_back.func, shift_);
  EXPECT_EQ(kernel_back.ctx, context_);
  EXPECT_EQ(*static_cast<CUdeviceptr*>(kernel_back.kernelParams[0]), memory);
  EXPECT_EQ(*static_cast<uint32_t*>(kernel_back.kernelParams[1]), 1u);
  CUevent event_back = nullptr;
  CUDA_OK(cuGraphEventRecordNodeGetEvent(recorded, &event_back));
  EXPECT_EQ(event_back, done);
  EXPECT_EQ(cuGraphMemsetNodeGetParams(shifted_node, &fill_back), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GraphNodeTest, NodeParametersAreChecked) {
  CUgraphNode made = nullptr;
  auto add = [&](auto change) {
    KernelNode node(shift_, word(0), 1);
    change(node.params);
    return cuGraphAddKernelNode_v2(&made, graph_, nullptr, 0, &node.params);
  };
  using Params = CUDA_KERNEL_NODE_PARAMS_v2;
  CUDA_OK(add([](Params&) {}));
  EXPECT_EQ(add([](Params& p) { p.gridDimX = 0; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(add([](Params& p) { p.func = nullptr; }), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(add([](Params& p) { p.kernelParams = nullptr; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(add([](Params& p) { p.blockDimX = 2048; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(add([](Params& p) { p.sharedMemBytes = 1 << 20; }), CUDA_ERROR_INVALID_VALUE);

  CUdeviceptr memory = 0;
  CUDA_OK(cuMemAlloc_v2(&memory, 256));
  auto fill = [&](CUdeviceptr to, unsigned value, unsigned element, size_t width) {
    const CUDA_MEMSET_NODE_PARAMS params{to, 0, value, element, width, 1};
    return cuGraphAddMemsetNode(&made, graph_, nullptr, 0, &params, context_);
  };
  EXPECT_EQ(fill(memory, 1, 3, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(fill(memory, 1, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(fill(16, 1, 1, 4), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(fill(memory, 300, 1, 4));
  auto copy = [&](CUdeviceptr from, size_t bytes, CUmemorytype type) {
    CUDA_MEMCPY3D params{};
    params.srcMemoryType = type;
    params.srcDevice = from;
    params.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    params.dstDevice = memory + 128;
    params.WidthInBytes = bytes;
    params.Height = params.Depth = 1;
    return cuGraphAddMemcpyNode(&made, graph_, nullptr, 0, &params, context_);
  };
  CUDA_OK(copy(memory, 16, CU_MEMORYTYPE_DEVICE));
  EXPECT_EQ(copy(memory, 0, CU_MEMORYTYPE_DEVICE), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(copy(16, 16, CU_MEMORYTYPE_DEVICE), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(copy(memory, 16, static_cast<CUmemorytype>(9)), CUDA_ERROR_INVALID_VALUE);
  const CUDA_HOST_NODE_PARAMS no_function{};
  EXPECT_EQ(cuGraphAddHostNode(&made, graph_, nullptr, 0, &no_function), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphAddEventRecordNode(&made, graph_, nullptr, 0, nullptr),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GraphNodeTest, ParametersOfAnExecutableCanBeSet) {
  const CUgraphNode node = kernel(graph_, shift_, word(0), 1);
  const CUgraphNode other = empty_node(graph_);
  const CUgraphExec exec = instantiate(graph_);
  CUDA_OK(spin(s_, word(9)));
  CUDA_OK(cuGraphLaunch(exec, s_));
  KernelNode changed(shift_, word(0), 2);
  CUDA_OK(cuGraphExecKernelNodeSetParams_v2(exec, node, &changed.params));
  CUDA_OK(cuGraphLaunch(exec, s_));
  KernelNode replaced(set_, word(1), 5);
  CUDA_OK(cuGraphExecKernelNodeSetParams_v2(exec, node, &replaced.params));
  CUDA_OK(cuGraphLaunch(exec, s_));
  write(9, 1);
  CUDA_OK(cuStreamSynchronize(s_));
  // A launch keeps the parameters that were set when it was issued.
  EXPECT_EQ(read(0), shifted(0, {1, 2}));
  EXPECT_EQ(read(1), 5u);
  changed.params.gridDimX = 0;
  EXPECT_EQ(cuGraphExecKernelNodeSetParams_v2(exec, node, &changed.params),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphExecKernelNodeSetParams_v2(exec, other, &replaced.params),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GraphNodeTest, NodesCanBeDisabled) {
  const CUgraphNode node = kernel(graph_, shift_, word(0), 1);
  const CUgraphNode nothing = empty_node(graph_, {node});
  kernel(graph_, shift_, word(0), 2, {nothing});
  const CUgraphExec exec = instantiate(graph_);
  unsigned enabled = 9;
  CUDA_OK(cuGraphNodeGetEnabled(exec, node, &enabled));
  EXPECT_EQ(enabled, 1u);
  CUDA_OK(cuGraphNodeSetEnabled(exec, node, 0));
  run(exec);
  EXPECT_EQ(read(0), 2u);
  CUDA_OK(cuGraphNodeSetEnabled(exec, node, 1));
  run(exec);
  EXPECT_EQ(read(0), shifted(2, {1, 2}));
  EXPECT_EQ(cuGraphNodeSetEnabled(exec, nothing, 0), CUDA_ERROR_INVALID_VALUE);
  CUgraph other = nullptr;
  CUDA_OK(cuGraphCreate(&other, 0));
  EXPECT_EQ(cuGraphNodeSetEnabled(exec, kernel(other, shift_, word(0), 1), 0),
            CUDA_ERROR_INVALID_VALUE);
}

// Adds to the word it is given.
void CUDA_CB add_seven(void* data) { *static_cast<uint32_t*>(data) += 7; }
void CUDA_CB add_hundred(void* data) { *static_cast<uint32_t*>(data) += 100; }

TEST_F(GraphNodeTest, OneCallMakesEveryKind) {
  const CUevent done = event();
  std::vector<CUgraphNode> nodes;
  // Each node depends on the previous one.
  const auto add = [&](CUgraphNodeType type, auto fill) {
    CUgraphNodeParams params{};
    params.type = type;
    fill(params);
    CUgraphNode made = nullptr;
    const CUgraphNode* after = nodes.empty() ? nullptr : &nodes.back();
    EXPECT_EQ(cuGraphAddNode_v2(&made, graph_, after, nullptr, nodes.empty() ? 0 : 1, &params),
              CUDA_SUCCESS)
        << type;
    nodes.push_back(made);
  };
  using Params = CUgraphNodeParams;
  CUdeviceptr at = word(0);
  uint32_t value = 5;
  void* arguments[] = {&at, &value};
  add(CU_GRAPH_NODE_TYPE_MEMSET, [&](Params& p) { p.memset = {word(0), 0, 3, 4, 1, 1, context_}; });
  add(CU_GRAPH_NODE_TYPE_KERNEL, [&](Params& p) {
    p.kernel.func = shift_;
    p.kernel.gridDimX = p.kernel.gridDimY = p.kernel.gridDimZ = 1;
    p.kernel.blockDimX = p.kernel.blockDimY = p.kernel.blockDimZ = 1;
    p.kernel.kernelParams = arguments;
    p.kernel.ctx = context_;
  });
  add(CU_GRAPH_NODE_TYPE_MEMCPY, [&](Params& p) {
    p.memcpy.copyCtx = context_;
    p.memcpy.copyParams = word_copy(1, 0);
  });
  add(CU_GRAPH_NODE_TYPE_HOST, [&](Params& p) { p.host = {add_seven, words_ + 1}; });
  add(CU_GRAPH_NODE_TYPE_EMPTY, [](Params&) {});
  CUstreamBatchMemOpParams write_three{};
  write_three.writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, word(2), {3}, 0, 0};
  add(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, [&](Params& p) {
    p.memOp = {context_, 1, &write_three, 0};
  });
  add(CU_GRAPH_NODE_TYPE_EVENT_RECORD, [&](Params& p) { p.eventRecord.event = done; });
  add(CU_GRAPH_NODE_TYPE_WAIT_EVENT, [&](Params& p) { p.eventWait.event = done; });
  CUgraph inner = nullptr;
  CUDA_OK(cuGraphCreate(&inner, 0));
  kernel(inner, add_, word(2), 40);
  add(CU_GRAPH_NODE_TYPE_GRAPH, [&](Params& p) { p.graph.graph = inner; });

  const CUgraphExec exec = instantiate(graph_);
  run(exec);
  EXPECT_EQ(read(0), shifted(3, {5}));
  EXPECT_EQ(read(1), shifted(3, {5}) + 7);
  EXPECT_EQ(read(2), 43u);
  EXPECT_EQ(cuEventQuery(done), CUDA_SUCCESS);

  // The same structure changes nodes of a graph and of an executable graph.
  Params changed{};
  changed.type = CU_GRAPH_NODE_TYPE_HOST;
  changed.host = {add_hundred, words_ + 1};
  CUDA_OK(cuGraphExecNodeSetParams(exec, nodes[3], &changed));
  run(exec);
  EXPECT_EQ(read(1), shifted(3, {5}) + 100);
  CUDA_OK(cuGraphNodeSetParams(nodes[3], &changed));
  CUDA_HOST_NODE_PARAMS told{};
  CUDA_OK(cuGraphHostNodeGetParams(nodes[3], &told));
  EXPECT_EQ(told.fn, add_hundred);
  EXPECT_EQ(cuGraphNodeSetParams(nodes[1], &changed), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphExecNodeSetParams(exec, nodes[1], &changed), CUDA_ERROR_INVALID_VALUE);

  CUgraphNode made = nullptr;
  EXPECT_EQ(cuGraphAddNode_v2(&made, graph_, nullptr, nullptr, 0, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  changed.type = static_cast<CUgraphNodeType>(99);
  EXPECT_EQ(cuGraphAddNode_v2(&made, graph_, nullptr, nullptr, 0, &changed),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GraphNodeTest, KernelNodesOfTheFirstVersion) {
  KernelNode node(shift_, word(0), 4);
  CUDA_KERNEL_NODE_PARAMS_v1 params{};
  params.func = shift_;
  params.gridDimX = params.gridDimY = params.gridDimZ = 1;
  params.blockDimX = params.blockDimY = params.blockDimZ = 1;
  params.kernelParams = node.pointers;
  CUgraphNode made = nullptr;
  CUDA_OK(cuGraphAddKernelNode(&made, graph_, nullptr, 0, &params));
  CUDA_KERNEL_NODE_PARAMS_v1 told{};
  CUDA_OK(cuGraphKernelNodeGetParams(made, &told));
  EXPECT_EQ(told.func, shift_);
  EXPECT_EQ(*static_cast<CUdeviceptr*>(told.kernelParams[0]), word(0));
  const CUgraphExec exec = instantiate(graph_);
  node.value = 6;
  CUDA_OK(cuGraphExecKernelNodeSetParams(exec, made, &params));
  run(exec);
  EXPECT_EQ(read(0), 6u);
  CUDA_OK(cuGraphKernelNodeSetParams(made, &params));
  run(instantiate(graph_));
  EXPECT_EQ(read(0), shifted(6, {6}));
}

TEST_F(GraphNodeTest, KernelNodesHaveAttributes) {
  const CUgraphNode a = kernel(graph_, shift_, word(0), 1);
  const CUgraphNode b = kernel(graph_, shift_, word(1), 1);
  CUkernelNodeAttrValue value{};
  value.cooperative = 1;
  CUDA_OK(cuGraphKernelNodeSetAttribute(a, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, &value));
  CUDA_OK(cuGraphKernelNodeCopyAttributes(b, a));
  value = {};
  CUDA_OK(cuGraphKernelNodeGetAttribute(b, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, &value));
  EXPECT_EQ(value.cooperative, 1);
  run(instantiate(graph_));
  EXPECT_EQ(read(1), 1u);
  EXPECT_EQ(cuGraphKernelNodeGetAttribute(b, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphKernelNodeGetAttribute(empty_node(graph_), CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE,
                                          &value),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GraphNodeTest, HostNodesCanBeChanged) {
  CUDA_HOST_NODE_PARAMS params{add_seven, words_}, told{};
  CUgraphNode node = nullptr;
  CUDA_OK(cuGraphAddHostNode(&node, graph_, nullptr, 0, &params));
  CUDA_OK(cuGraphHostNodeGetParams(node, &told));
  EXPECT_EQ(told.fn, add_seven);
  EXPECT_EQ(told.userData, words_);
  const CUgraphExec exec = instantiate(graph_);
  params.fn = add_hundred;
  CUDA_OK(cuGraphExecHostNodeSetParams(exec, node, &params));
  run(exec);
  EXPECT_EQ(read(0), 100u);
  params.userData = words_ + 1;
  CUDA_OK(cuGraphHostNodeSetParams(node, &params));
  run(instantiate(graph_));
  EXPECT_EQ(read(0), 100u);
  EXPECT_EQ(read(1), 100u);
  params.fn = nullptr;
  EXPECT_EQ(cuGraphHostNodeSetParams(node, &params), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GraphNodeTest, CopyAndMemoryOperationNodesCanBeChanged) {
  write(0, 11);
  write(1, 22);
  CUDA_MEMCPY3D copy = word_copy(5, 0);
  CUgraphNode copied = nullptr, written = nullptr;
  CUDA_OK(cuGraphAddMemcpyNode(&copied, graph_, nullptr, 0, &copy, context_));
  CUstreamBatchMemOpParams operation{};
  operation.writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, word(6), {1}, 0, 0};
  CUDA_BATCH_MEM_OP_NODE_PARAMS batch{context_, 1, &operation, 0}, told{};
  CUDA_OK(cuGraphAddBatchMemOpNode(&written, graph_, nullptr, 0, &batch));
  CUDA_OK(cuGraphBatchMemOpNodeGetParams(written, &told));
  ASSERT_EQ(told.count, 1u);
  EXPECT_EQ(told.paramArray[0].writeValue.address, word(6));
  const CUgraphExec exec = instantiate(graph_);
  copy.srcDevice = word(1);
  CUDA_OK(cuGraphExecMemcpyNodeSetParams(exec, copied, &copy, context_));
  operation.writeValue.value = 2;
  CUDA_OK(cuGraphExecBatchMemOpNodeSetParams(exec, written, &batch));
  run(exec);
  EXPECT_EQ(read(5), 22u);
  EXPECT_EQ(read(6), 2u);
  run(instantiate(graph_));  // which has not changed
  EXPECT_EQ(read(5), 11u);
  EXPECT_EQ(read(6), 1u);
  CUDA_OK(cuGraphMemcpyNodeSetParams(copied, &copy));
  CUDA_OK(cuGraphBatchMemOpNodeSetParams(written, &batch));
  run(instantiate(graph_));
  EXPECT_EQ(read(5), 22u);
  EXPECT_EQ(read(6), 2u);
}

TEST_F(GraphNodeTest, EventNodesCanBeChanged) {
  const CUevent never = event(), first = event(), second = event();
  CUgraphNode waits = nullptr, records = nullptr;
  CUDA_OK(cuGraphAddEventWaitNode(&waits, graph_, nullptr, 0, first));
  CUDA_OK(cuGraphAddEventRecordNode(&records, graph_, &waits, 1, never));
  CUevent told = nullptr;
  CUDA_OK(cuGraphEventWaitNodeGetEvent(waits, &told));
  EXPECT_EQ(told, first);
  const CUgraphExec exec = instantiate(graph_);
  CUDA_OK(cuGraphExecEventWaitNodeSetEvent(exec, waits, second));
  CUDA_OK(cuGraphExecEventRecordNodeSetEvent(exec, records, first));
  const CUstream other = stream(CU_STREAM_NON_BLOCKING);
  CUDA_OK(spin(other, word(0)));
  CUDA_OK(cuEventRecord(second, other));
  CUDA_OK(cuGraphLaunch(exec, s_));
  EXPECT_EQ(cuStreamQuery(s_), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuEventQuery(first), CUDA_ERROR_NOT_READY);
  write(0, 1);
  CUDA_OK(cuEventSynchronize(first));
  CUDA_OK(cuStreamSynchronize(s_));
  CUDA_OK(cuGraphEventWaitNodeSetEvent(waits, never));
  CUDA_OK(cuGraphEventWaitNodeGetEvent(waits, &told));
  EXPECT_EQ(told, never);
  EXPECT_EQ(cuGraphEventWaitNodeGetEvent(records, &told), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GraphNodeTest, MemoryOfGraphsIsAccountedFor) {
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_}};
  params.bytesize = 1 << 20;
  CUgraphNode allocated = nullptr, freed = nullptr;
  CUDA_OK(cuGraphAddMemAllocNode(&allocated, graph_, nullptr, 0, &params));
  CUDA_OK(cuGraphAddMemFreeNode(&freed, graph_, &allocated, 1, params.dptr));
  CUdeviceptr told = 0;
  CUDA_OK(cuGraphMemFreeNodeGetParams(freed, &told));
  EXPECT_EQ(told, params.dptr);
  const CUgraphExec exec = instantiate(graph_);
  run(exec);
  const auto attribute = [&](CUgraphMem_attribute which) {
    cuuint64_t value = 0;
    EXPECT_EQ(cuDeviceGetGraphMemAttribute(device_, which, &value), CUDA_SUCCESS);
    return value;
  };
  EXPECT_GE(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), cuuint64_t{1} << 20);
  EXPECT_GE(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH), cuuint64_t{1} << 20);
  CUDA_OK(cuGraphExecDestroy(exec));
  CUDA_OK(cuGraphDestroy(graph_));
  CUDA_OK(cuDeviceGraphMemTrim(device_));
  EXPECT_EQ(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0u);
  EXPECT_EQ(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0u);
  cuuint64_t zero = 0;
  CUDA_OK(cuDeviceSetGraphMemAttribute(device_, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero));
  EXPECT_EQ(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), 0u);
  EXPECT_EQ(cuDeviceSetGraphMemAttribute(device_, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &zero),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceGraphMemTrim(1000), CUDA_ERROR_INVALID_DEVICE);
}

TEST_F(GraphNodeTest, OldVersionsOfInstantiate) {
  kernel(graph_, add_, word(0), 1);
  CUgraphExec exec = nullptr;
  CUgraphNode bad = nullptr;
  char log[64] = "x";
  CUDA_OK(cuGraphInstantiate(&exec, graph_, &bad, log, sizeof log));
  run(exec);
  CUDA_OK(cuGraphInstantiate_v2(&exec, graph_, &bad, log, sizeof log));
  run(exec);
  EXPECT_EQ(read(0), 2u);
}

TEST_F(GraphNodeTest, PrintsItsStructure) {
  kernel(graph_, add_, word(0), 1, {empty_node(graph_)});
  const std::string path = testing::TempDir() + "graph_node_test.dot";
  CUDA_OK(cuGraphDebugDotPrint(graph_, path.c_str(), CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE));
  std::ifstream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  ::unlink(path.c_str());
  EXPECT_NE(text.find("digraph"), std::string::npos);
  EXPECT_NE(text.find("->"), std::string::npos);
  EXPECT_EQ(cuGraphDebugDotPrint(graph_, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace softgpu::driver
