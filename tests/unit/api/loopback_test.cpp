// Cases that the generated loopback tests do not reach: unions, kernels passed as functions,
// refusals.
#include "tests/unit/api/loopback.h"

#include <gtest/gtest.h>

#include "api/opcodes.h"
#include "api/print_command.h"
#include "client/forward.h"

namespace rcuda::loopback {
namespace {

using api::to_pointer;
using client::forward_cuEventRecord;

TEST_F(LoopbackTest, NullHandlesAreRefusedWithTheDriversError) {
  EXPECT_EQ(forward_cuEventRecord(nullptr, nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(client::forward_cuGraphUpload(nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(client::forward_cuCtxEnablePeerAccess(nullptr, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(Recorded::get().posted + Recorded::get().called, 0u);
}

TEST_F(LoopbackTest, HandlesOfAnotherKindAreRefused) {
  const auto stream = client_handle<CUevent>(wire::Kind::kStream, 5);
  EXPECT_EQ(forward_cuEventRecord(stream, nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(Recorded::get().posted, 0u);
}

TEST_F(LoopbackTest, NullOutputsAreRefused) {
  EXPECT_EQ(client::forward_cuCtxGetLimit(nullptr, CU_LIMIT_STACK_SIZE), CUDA_ERROR_INVALID_VALUE);
  const auto graph = client_handle<CUgraph>(wire::Kind::kGraph, 1);
  CUgraphNode nodes[2];
  EXPECT_EQ(client::forward_cuGraphGetNodes(graph, nodes, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(client::forward_rcuda_graph_dot(graph, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  const auto node = client_handle<CUgraphNode>(wire::Kind::kGraphNode, 1);
  CUDA_MEM_ALLOC_NODE_PARAMS params;
  size_t count = 8;
  EXPECT_EQ(client::forward_rcuda_graph_alloc_node(node, &params, nullptr, &count),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Recorded::get().called, 0u);
}

TEST_F(LoopbackTest, OptionalOutputsReachTheDriverAsNull) {
  table().cuMemGetInfo_v2 = [](size_t* free, size_t* total) {
    EXPECT_EQ(free, nullptr);
    *total = 7;
    return CUDA_SUCCESS;
  };
  size_t total = 0;
  EXPECT_EQ(client::forward_cuMemGetInfo_v2(nullptr, &total), CUDA_SUCCESS);
  EXPECT_EQ(total, 7u);
  table().cuStreamEndCapture = [](CUstream, CUgraph* graph) {
    return graph == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  };
  const auto stream = client_handle<CUstream>(wire::Kind::kStream, 2);
  EXPECT_EQ(client::forward_cuStreamEndCapture(stream, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Recorded::get().called, 2u);
}

TEST_F(LoopbackTest, APeerThatLeavesOutARequiredArrayIsRefused) {
  const auto is_malformed = [](uint32_t present) {
    wire::Encoder in;
    in.value<wire::ObjectId>(1);  // node
    in.value<uint32_t>(8);        // room for access
    in.value<uint32_t>(present);
    in.value<size_t>(8);  // access_count
    std::vector<uint64_t> reply;
    size_t reply_bytes = 0;
    const auto opcode = static_cast<uint16_t>(api::Opcode::rcuda_graph_alloc_node);
    return run_handler(opcode, in.body(), &reply, &reply_bytes).malformed;
  };
  EXPECT_FALSE(is_malformed(1));
  EXPECT_TRUE(is_malformed(0));
}

TEST_F(LoopbackTest, WhatTheDriverRefusesToDestroyIsStillThere) {
  static CUresult answer;
  table().cuMemPoolDestroy = [](CUmemoryPool) { return answer; };
  const auto pool = client_handle<CUmemoryPool>(wire::Kind::kMemoryPool, 5);
  answer = CUDA_ERROR_INVALID_VALUE;
  EXPECT_EQ(client::forward_cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(Recorded::get().unbound.empty());
  EXPECT_TRUE(Recorded::get().retired.empty());
  answer = CUDA_SUCCESS;
  EXPECT_EQ(client::forward_cuMemPoolDestroy(pool), CUDA_SUCCESS);
  expect_destroyed(to_pointer(pool), wire::Kind::kMemoryPool);
}

TEST_F(LoopbackTest, TheDriverRefusesARankThatNoTensorMapHas) {
  table().cuTensorMapEncodeTiled = [](CUtensorMap*, CUtensorMapDataType, cuuint32_t rank, void*,
                                      const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                      const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                      CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    return rank >= 1 && rank <= 5 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  };
  CUtensorMap map{};
  const cuuint64_t sizes[1] = {64};
  const cuuint32_t box[1] = {8}, strides[1] = {1};
  for (const cuuint32_t rank : {0u, 1u, 6u, 1000u, ~0u}) {
    // With one dimension there are no strides.
    const CUresult result = client::forward_cuTensorMapEncodeTiled(
        &map, CU_TENSOR_MAP_DATA_TYPE_UINT8, rank, nullptr, sizes, nullptr, box, strides,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    EXPECT_EQ(result, rank == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE) << rank;
  }
}

TEST_F(LoopbackTest, AFunctionTheDriverLacksIsNotSupported) {
  size_t free_bytes = 0, total = 0;
  EXPECT_EQ(client::forward_cuMemGetInfo_v2(&free_bytes, &total), CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(LoopbackTest, AnOlderDriverServesUnderTheOlderName) {
  table().cuEventElapsedTime = [](float* milliseconds, CUevent, CUevent) {
    *milliseconds = 2.5f;
    return CUDA_SUCCESS;
  };
  float milliseconds = 0;
  const auto start = client_handle<CUevent>(wire::Kind::kEvent, 1);
  const auto stop = client_handle<CUevent>(wire::Kind::kEvent, 2);
  EXPECT_EQ(client::forward_cuEventElapsedTime_v2(&milliseconds, start, stop), CUDA_SUCCESS);
  EXPECT_EQ(milliseconds, 2.5f);
}

TEST_F(LoopbackTest, AFailedCreateRetiresItsHandle) {
  table().cuGraphCreate = [](CUgraph*, unsigned) { return CUDA_ERROR_OUT_OF_MEMORY; };
  CUgraph graph = nullptr;
  EXPECT_EQ(client::forward_cuGraphCreate(&graph, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(graph, nullptr);
  EXPECT_EQ(Recorded::get().retired.size(), 1u);
  EXPECT_TRUE(Recorded::get().bound.empty());
}

TEST_F(LoopbackTest, AKernelMayStandWhereAFunctionIsExpected) {
  table().cuOccupancyAvailableDynamicSMemPerBlock = [](size_t* bytes, CUfunction function, int,
                                                       int) {
    *bytes = reinterpret_cast<uintptr_t>(function) ==
             handle_number(Side::kWorker, wire::Kind::kKernel, 9);
    return CUDA_SUCCESS;
  };
  size_t bytes = 0;
  const auto kernel = client_handle<CUfunction>(wire::Kind::kKernel, 9);
  EXPECT_EQ(client::forward_cuOccupancyAvailableDynamicSMemPerBlock(&bytes, kernel, 1, 32),
            CUDA_SUCCESS);
  EXPECT_EQ(bytes, 1u);
}

TEST_F(LoopbackTest, ArraysInResourceDescriptionsAreTranslated) {
  table().cuTexObjectCreate = [](CUtexObject* object, const CUDA_RESOURCE_DESC* resource,
                                 const CUDA_TEXTURE_DESC*, const CUDA_RESOURCE_VIEW_DESC* view) {
    EXPECT_EQ(view, nullptr);
    *object = reinterpret_cast<uintptr_t>(resource->res.array.hArray);
    return CUDA_SUCCESS;
  };
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  resource.res.array.hArray = client_handle<CUarray>(wire::Kind::kArray, 6);
  const CUDA_TEXTURE_DESC texture{};
  CUtexObject object = 0;
  EXPECT_EQ(client::forward_cuTexObjectCreate(&object, &resource, &texture, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(object, handle_number(Side::kWorker, wire::Kind::kArray, 6));

  // A linear resource's address is in the same bytes and is not translated.
  resource.resType = CU_RESOURCE_TYPE_LINEAR;
  resource.res.linear.devPtr = 0x6000'0000'0000ull;
  EXPECT_EQ(client::forward_cuTexObjectCreate(&object, &resource, &texture, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(object, 0x6000'0000'0000ull);
}

TEST_F(LoopbackTest, CallbacksBecomeTheWorkersHostFunctions) {
  table().cuGraphAddHostNode = [](CUgraphNode* node, CUgraph, const CUgraphNode*, size_t count,
                                  const CUDA_HOST_NODE_PARAMS* params) {
    EXPECT_EQ(count, 0u);
    EXPECT_NE(params->fn, nullptr);
    *node = reinterpret_cast<CUgraphNode>(
        handle_number(Side::kWorker, wire::Kind::kGraphNode,
                      static_cast<uint32_t>(reinterpret_cast<uintptr_t>(params->userData))));
    return CUDA_SUCCESS;
  };
  CUDA_HOST_NODE_PARAMS params{};
  params.userData = reinterpret_cast<void*>(0x12);
  CUgraphNode node = nullptr;
  const auto graph = client_handle<CUgraph>(wire::Kind::kGraph, 1);
  EXPECT_EQ(client::forward_cuGraphAddHostNode(&node, graph, nullptr, 0, &params), CUDA_SUCCESS);
  EXPECT_EQ(node, client_handle<CUgraphNode>(wire::Kind::kGraphNode, 0x1012));
}

TEST_F(LoopbackTest, OutputsOfAFailedUpdateComeBack) {
  table().cuGraphExecUpdate_v2 = [](CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo* info) {
    info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    info->errorNode =
        reinterpret_cast<CUgraphNode>(handle_number(Side::kWorker, wire::Kind::kGraphNode, 8));
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  };
  CUgraphExecUpdateResultInfo info{};
  EXPECT_EQ(
      client::forward_cuGraphExecUpdate_v2(client_handle<CUgraphExec>(wire::Kind::kGraphExec, 1),
                                           client_handle<CUgraph>(wire::Kind::kGraph, 2), &info),
      CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  EXPECT_EQ(info.errorNode, client_handle<CUgraphNode>(wire::Kind::kGraphNode, 8));
  EXPECT_EQ(info.errorFromNode, nullptr);
}

TEST_F(LoopbackTest, KernelNodesCarryTheirParametersPacked) {
  table().cuGraphAddKernelNode_v2 = [](CUgraphNode* node, CUgraph, const CUgraphNode*, size_t,
                                       const CUDA_KERNEL_NODE_PARAMS* params) {
    EXPECT_EQ(params->gridDimX, 7u);
    EXPECT_EQ(params->func, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(params->kern),
              handle_number(Side::kWorker, wire::Kind::kKernel, 4));
    EXPECT_EQ(params->kernelParams, nullptr);
    EXPECT_EQ(params->extra[0], CU_LAUNCH_PARAM_BUFFER_POINTER);
    EXPECT_EQ(std::string(static_cast<const char*>(params->extra[1]), 5), "bytes");
    EXPECT_EQ(params->extra[2], CU_LAUNCH_PARAM_BUFFER_SIZE);
    EXPECT_EQ(*static_cast<size_t*>(params->extra[3]), 5u);
    EXPECT_EQ(params->extra[4], CU_LAUNCH_PARAM_END);
    *node = reinterpret_cast<CUgraphNode>(
        handle_number(Side::kWorker, wire::Kind::kGraphNode, kNamedId));
    return CUDA_SUCCESS;
  };
  table().cuKernelGetParamInfo = [](CUkernel, size_t, size_t*, size_t*) {
    return CUDA_ERROR_INVALID_VALUE;  // it has no parameters
  };
  CUDA_KERNEL_NODE_PARAMS shape{};
  shape.gridDimX = 7;
  CUgraphNode node = nullptr;
  EXPECT_EQ(client::forward_rcuda_graph_add_kernel_node(
                &node, client_handle<CUgraph>(wire::Kind::kGraph, 1), nullptr, 0, nullptr,
                client_handle<CUkernel>(wire::Kind::kKernel, 4), nullptr, &shape, "bytes", 5, 1),
            CUDA_SUCCESS);
  expect_named(&node, 1, wire::Kind::kGraphNode);
}

TEST_F(LoopbackTest, CommandsArePrintedWithTheirArguments) {
  const auto stream = client_handle<CUstream>(wire::Kind::kStream, 3);
  (void)client::forward_cuMemsetD8Async(0x6000'0000'1000, 7, 16, stream);
  EXPECT_EQ(Recorded::get().printed,
            "cuMemsetD8Async(dstDevice=0x600000001000, uc=7, N=16, hStream=#3)");

  CUdeviceptr address = 0;
  (void)client::forward_cuLibraryGetGlobal(
      &address, nullptr, client_handle<CUlibrary>(wire::Kind::kLibrary, 2), "table");
  EXPECT_EQ(Recorded::get().printed, "cuLibraryGetGlobal(library=#2, name_=\"table\")");

  CUgraph graph = nullptr;
  (void)client::forward_cuGraphCreate(&graph, 0);
  EXPECT_EQ(Recorded::get().printed, "cuGraphCreate(flags=0, phGraph->#64)");

  const CUgraphNode nodes[2] = {client_handle<CUgraphNode>(wire::Kind::kGraphNode, 8),
                                client_handle<CUgraphNode>(wire::Kind::kGraphNode, 9)};
  CUgraphNode node = nullptr;
  (void)client::forward_cuGraphAddEmptyNode(&node, client_handle<CUgraph>(wire::Kind::kGraph, 1),
                                            nodes, 2);
  EXPECT_EQ(Recorded::get().printed,
            "cuGraphAddEmptyNode(hGraph=#1, dependencies=[#8 #9], numDependencies=2)");
}

TEST(PrintCommandTest, SaysWhatCannotBeRead) {
  const uint64_t words[2] = {~0ull, ~0ull};
  const auto body = std::as_bytes(std::span(words));
  const auto graph = static_cast<uint16_t>(api::Opcode::cuGraphAddEmptyNode);
  EXPECT_NE(api::print_command(graph, body).find("malformed"), std::string::npos);
  EXPECT_EQ(api::print_command(7, body), "CopyStaged(16 bytes)");
  EXPECT_EQ(api::print_command(0xfff0, {}), "unknown(0 bytes)");
}

TEST_F(LoopbackTest, CaptureInformationIsCopiedOut) {
  table().cuStreamGetCaptureInfo_v3 = [](CUstream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                         CUgraph* graph, const CUgraphNode** dependencies,
                                         const CUgraphEdgeData** edges, size_t* count) {
    static CUgraphNode nodes[3];
    static CUgraphEdgeData data[3];
    answer_handles(nodes, 3, wire::Kind::kGraphNode);
    data[1].type = 1;
    *status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    *id = 12;
    answer_handles(graph, 1, wire::Kind::kGraph);
    *dependencies = nodes;
    if (edges != nullptr) *edges = data;
    *count = 3;
    return CUDA_SUCCESS;
  };
  const auto stream = client_handle<CUstream>(wire::Kind::kStream, 2);
  CUstreamCaptureStatus status{};
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  CUgraphNode nodes[2] = {};
  CUgraphEdgeData edges[2] = {};
  size_t count = 2;
  EXPECT_EQ(
      client::forward_rcuda_stream_capture_info(stream, &status, &id, &graph, nodes, edges, &count),
      CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(id, 12u);
  EXPECT_EQ(count, 3u) << "how many there are, not how many fitted";
  expect_named(&graph, 1, wire::Kind::kGraph);
  expect_named(nodes, 2, wire::Kind::kGraphNode);
  EXPECT_EQ(edges[1].type, 1);
}

TEST_F(LoopbackTest, CaptureInformationIsAskedForAsTheApplicationAsks) {
  table().cuStreamGetCaptureInfo_v3 = [](CUstream, CUstreamCaptureStatus* status, cuuint64_t*,
                                         CUgraph* graph, const CUgraphNode** dependencies,
                                         const CUgraphEdgeData** edges, size_t* count) {
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(dependencies, nullptr);
    *status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    *count = 3;
    return edges == nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  };
  const auto stream = client_handle<CUstream>(wire::Kind::kStream, 2);
  CUstreamCaptureStatus status{};
  cuuint64_t id = 0;
  CUgraphEdgeData edges[2] = {};
  size_t count = 2;
  EXPECT_EQ(client::forward_rcuda_stream_capture_info(stream, &status, &id, nullptr, nullptr,
                                                      nullptr, &count),
            CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(count, 3u);
  EXPECT_EQ(client::forward_rcuda_stream_capture_info(stream, &status, &id, nullptr, nullptr, edges,
                                                      &count),
            CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace rcuda::loopback
