// Executable graphs: instantiation, launch, update, parameters.
#include <utility>

#include <cuda.h>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/graph_exec.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/stream.h"

using namespace softgpu::driver;

namespace {

// cuGraphInstantiateWithParams also accepts _UPLOAD, because its parameters name a stream for the
// upload.
constexpr cuuint64_t kFlags = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                              CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH |
                              CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;

// Returns a node that a graph for device launch must not have, or null. Driver 580 accepts the
// types below. The caller holds graph_mutex().
GraphNode* not_for_device_launch(const Graph& graph) {
  for (const std::shared_ptr<GraphNode>& node : graph.nodes()) {
    switch (node->type) {
      case CU_GRAPH_NODE_TYPE_KERNEL:
      case CU_GRAPH_NODE_TYPE_MEMCPY:
      case CU_GRAPH_NODE_TYPE_MEMSET:
        break;
      case CU_GRAPH_NODE_TYPE_GRAPH:
        for (const std::shared_ptr<Graph>& child : graphs_in(node->operation)) {
          if (GraphNode* const found = not_for_device_launch(*child)) return found;
        }
        break;
      default:
        return node.get();
    }
  }
  return nullptr;
}

// Sets `*refused` to the node that forbids device launch.
CUresult check_device_launch(const Graph& graph, cuuint64_t flags, CUgraphNode* refused) {
  if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) == 0) return CUDA_SUCCESS;
  std::lock_guard lock(graph_mutex());
  const bool frees = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
  if (frees || graph.nodes().empty()) return CUDA_ERROR_INVALID_VALUE;
  GraphNode* const found = not_for_device_launch(graph);
  if (found == nullptr) return CUDA_SUCCESS;
  *refused = found->handle();
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult instantiate(CUgraphExec* exec, CUgraph handle, cuuint64_t flags,
                     CUgraphNode* refused = nullptr) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (exec == nullptr || (flags & ~kFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Graph> graph = graph_from_handle(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = check_unsafe_call()) return result;
  {
    std::lock_guard lock(graph_mutex());
    if (graph->capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  CUgraphNode unused = nullptr;
  if (CUresult result = check_device_launch(*graph, flags, refused ? refused : &unused)) {
    return result;
  }
  std::shared_ptr<GraphExec> made;
  if (CUresult result = GraphExec::instantiate(graph, flags, &made)) return result;
  *exec = made->handle();
  return CUDA_SUCCESS;
}

CUresult find(CUgraphExec handle, std::shared_ptr<GraphExec>* exec) {
  if (CUresult result = check_initialized()) return result;
  *exec = GraphExec::from_handle(handle);
  return *exec == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult find(CUgraphExec handle, CUgraphNode node_handle, std::shared_ptr<GraphExec>* exec,
              std::shared_ptr<GraphNode>* node) {
  if (CUresult result = find(handle, exec)) return result;
  *node = node_from_handle(node_handle);
  return *node == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

template <typename Make>
CUresult set_params(CUgraphExec handle, CUgraphNode node_handle, Make make) {
  std::shared_ptr<GraphExec> exec;
  std::shared_ptr<GraphNode> node;
  if (CUresult result = find(handle, node_handle, &exec, &node)) return result;
  NodeContent content;
  if (CUresult result = make(&content)) return result;
  return exec->set_params(*node, std::move(content));
}

CUresult enter_with_graph(CUgraphExec handle, CUstream stream_handle,
                          std::shared_ptr<GraphExec>* exec, std::shared_ptr<Stream>* stream) {
  Context* context = nullptr;
  if (CUresult result = enter_stream(stream_handle, &context, stream)) return result;
  // A graph launch cannot be captured by the real driver either.
  if (CUresult result = refuse_on_capturing(**stream)) return result;
  if (CUresult result = refuse_implicit(**stream)) return result;
  return find(handle, exec);
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuGraphInstantiate(CUgraphExec* phGraphExec, CUgraph hGraph,
                                    CUgraphNode* phErrorNode, char* logBuffer, size_t bufferSize) {
  if (phErrorNode != nullptr) *phErrorNode = nullptr;
  if (logBuffer != nullptr && bufferSize != 0) logBuffer[0] = '\0';
  return instantiate(phGraphExec, hGraph, 0);
}

CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec* phGraphExec, CUgraph hGraph,
                                       CUgraphNode* phErrorNode, char* logBuffer,
                                       size_t bufferSize) {
  return cuGraphInstantiate(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec* phGraphExec, CUgraph hGraph,
                                             unsigned long long flags) {
  return instantiate(phGraphExec, hGraph, flags);
}

CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec* phGraphExec, CUgraph hGraph,
                                              CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) {
  if (instantiateParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  instantiateParams->hErrNode_out = nullptr;
  constexpr cuuint64_t kKnown =
      CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
      CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  if (instantiateParams->flags & ~kKnown) {
    instantiateParams->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult result =
      instantiate(phGraphExec, hGraph,
                  instantiateParams->flags & ~cuuint64_t{CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD},
                  &instantiateParams->hErrNode_out);
  const bool for_device =
      (instantiateParams->flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0;
  if (result == CUDA_SUCCESS) {
    instantiateParams->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
  } else if (instantiateParams->hErrNode_out != nullptr) {
    instantiateParams->result_out = CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED;
  } else if (result == CUDA_ERROR_INVALID_VALUE && !for_device &&
             graph_from_handle(hGraph) != nullptr) {
    instantiateParams->result_out = CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
  } else {
    instantiateParams->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
  }
  return result;
}

CUresult CUDAAPI cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t* flags) {
  std::shared_ptr<GraphExec> exec;
  if (CUresult result = find(hGraphExec, &exec)) return result;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = exec->flags();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec hGraphExec) {
  if (CUresult result = check_initialized()) return result;
  return handle_table<GraphExec>().remove(hGraphExec) == nullptr ? CUDA_ERROR_INVALID_VALUE
                                                                 : CUDA_SUCCESS;
}

// There is nothing to upload; the call is checked like a launch.
CUresult CUDAAPI cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream) {
  std::shared_ptr<GraphExec> exec;
  std::shared_ptr<Stream> stream;
  return enter_with_graph(hGraphExec, hStream, &exec, &stream);
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream) {
  std::shared_ptr<GraphExec> exec;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_with_graph(hGraphExec, hStream, &exec, &stream)) return result;
  return exec->launch(*stream);
}

CUresult CUDAAPI cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph,
                                      CUgraphExecUpdateResultInfo* resultInfo) {
  std::shared_ptr<GraphExec> exec;
  if (CUresult result = find(hGraphExec, &exec)) return result;
  const std::shared_ptr<Graph> graph = graph_from_handle(hGraph);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUgraphExecUpdateResultInfo info{};
  const CUresult result = exec->update(*graph, &info);
  if (resultInfo != nullptr) *resultInfo = info;
  return result;
}

CUresult CUDAAPI cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph,
                                   CUgraphNode* hErrorNode_out,
                                   CUgraphExecUpdateResult* updateResult_out) {
  if (hErrorNode_out == nullptr || updateResult_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUgraphExecUpdateResultInfo info{};
  const CUresult result = cuGraphExecUpdate_v2(hGraphExec, hGraph, &info);
  *hErrorNode_out = info.errorNode;
  *updateResult_out = info.result;
  return result;
}

CUresult CUDAAPI cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  return set_params(hGraphExec, hNode,
                    [&](NodeContent* content) { return make_kernel_node(nodeParams, content); });
}

CUresult CUDAAPI cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                   const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  return set_params(hGraphExec, hNode,
                    [&](NodeContent* content) { return make_kernel_node(nodeParams, content); });
}

CUresult CUDAAPI cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                const CUDA_MEMCPY3D* copyParams, CUcontext ctx) {
  return set_params(hGraphExec, hNode,
                    [&](NodeContent* content) { return make_copy_node(copyParams, ctx, content); });
}

CUresult CUDAAPI cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                const CUDA_MEMSET_NODE_PARAMS* memsetParams,
                                                CUcontext ctx) {
  return set_params(hGraphExec, hNode, [&](NodeContent* content) {
    return make_fill_node(memsetParams, ctx, content);
  });
}

CUresult CUDAAPI cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                              const CUDA_HOST_NODE_PARAMS* nodeParams) {
  return set_params(hGraphExec, hNode,
                    [&](NodeContent* content) { return make_host_node(nodeParams, content); });
}

CUresult CUDAAPI cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                    CUgraph childGraph) {
  std::shared_ptr<GraphExec> exec;
  std::shared_ptr<GraphNode> node;
  if (CUresult result = find(hGraphExec, hNode, &exec, &node)) return result;
  const std::shared_ptr<Graph> child = graph_from_handle(childGraph);
  if (child == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return exec->set_child_params(*node, *child);
}

CUresult CUDAAPI cuGraphExecEventRecordNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                    CUevent event) {
  return set_params(hGraphExec, hNode,
                    [&](NodeContent* content) { return make_event_record_node(event, content); });
}

CUresult CUDAAPI cuGraphExecEventWaitNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                  CUevent event) {
  return set_params(hGraphExec, hNode,
                    [&](NodeContent* content) { return make_event_wait_node(event, content); });
}

CUresult CUDAAPI cuGraphExecBatchMemOpNodeSetParams(
    CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
  return set_params(hGraphExec, hNode,
                    [&](NodeContent* content) { return make_mem_op_node(nodeParams, content); });
}

CUresult CUDAAPI cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                          CUgraphNodeParams* nodeParams) {
  if (nodeParams == nullptr || nodeParams->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
      nodeParams->type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (nodeParams->type == CU_GRAPH_NODE_TYPE_GRAPH) {
    return cuGraphExecChildGraphNodeSetParams(hGraphExec, hNode, nodeParams->graph.graph);
  }
  return set_params(hGraphExec, hNode,
                    [&](NodeContent* content) { return make_node(nodeParams, content); });
}

CUresult CUDAAPI cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode,
                                       unsigned int isEnabled) {
  std::shared_ptr<GraphExec> exec;
  std::shared_ptr<GraphNode> node;
  if (CUresult result = find(hGraphExec, hNode, &exec, &node)) return result;
  return exec->set_enabled(*node, isEnabled != 0);
}

CUresult CUDAAPI cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode,
                                       unsigned int* isEnabled) {
  std::shared_ptr<GraphExec> exec;
  std::shared_ptr<GraphNode> node;
  if (CUresult result = find(hGraphExec, hNode, &exec, &node)) return result;
  if (isEnabled == nullptr) return CUDA_ERROR_INVALID_VALUE;
  bool enabled = false;
  if (CUresult result = exec->enabled(*node, &enabled)) return result;
  *isEnabled = enabled ? 1 : 0;
  return CUDA_SUCCESS;
}

}  // extern "C"
