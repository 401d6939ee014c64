// Graph nodes of any type. Each function calls the entry point for the node's type.

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include <cuda.h>

#include "client/objects/arena.h"
#include "client/objects/graph.h"
#include "client/process/process.h"
#include "common/cuda/return_if_error.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

// Converts a newer struct of cuda.h to the older struct that the entry point takes. The newer
// struct begins with the members of the older.
template <typename Older, typename Newer>
Older older(const Newer& given) {
  static_assert(sizeof(Older) <= sizeof(Newer));
  Older parameters;
  std::memcpy(&parameters, &given, sizeof parameters);
  return parameters;
}

CUcontext context_or_current(CUcontext context) {
  return context ? context : reinterpret_cast<CUcontext>(current_context().handle());
}

CUresult add_conditional_node(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                              size_t count, CUDA_CONDITIONAL_NODE_PARAMS* parameters) {
  // A limit, because one reply returns the handles of all bodies. No driver accepts as many.
  constexpr unsigned kMostBodies = 1024;
  if (parameters->size > kMostBodies) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraph> bodies(parameters->size);
  size_t body_count = bodies.size();
  RCUDA_RETURN_IF_CUDA_ERROR(forward_rcuda_graph_add_conditional(
      node, graph, dependencies, count, parameters->handle, parameters->type,
      context_or_current(parameters->ctx), bodies.data(), &body_count));
  // The node owns the array of bodies, because the application may read it as long as the node
  // exists.
  auto& kept = find<GraphNode>(*node)->answers().bodies = std::move(bodies);
  parameters->phGraph_out = kept.data();
  return CUDA_SUCCESS;
}

CUresult add_node(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                  CUgraphNodeParams* parameters) {
  switch (parameters->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const auto kernel = older<CUDA_KERNEL_NODE_PARAMS>(parameters->kernel);
      return cuGraphAddKernelNode_v2(node, graph, dependencies, count, &kernel);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return cuGraphAddMemcpyNode(node, graph, dependencies, count, &parameters->memcpy.copyParams,
                                  context_or_current(parameters->memcpy.copyCtx));
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const auto fill = older<CUDA_MEMSET_NODE_PARAMS>(parameters->memset);
      return cuGraphAddMemsetNode(node, graph, dependencies, count, &fill,
                                  context_or_current(parameters->memset.ctx));
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const auto host = older<CUDA_HOST_NODE_PARAMS>(parameters->host);
      return cuGraphAddHostNode(node, graph, dependencies, count, &host);
    }
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return cuGraphAddChildGraphNode(node, graph, dependencies, count, parameters->graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return cuGraphAddEmptyNode(node, graph, dependencies, count);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return cuGraphAddEventRecordNode(node, graph, dependencies, count,
                                       parameters->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return cuGraphAddEventWaitNode(node, graph, dependencies, count, parameters->eventWait.event);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
      auto allocation = older<CUDA_MEM_ALLOC_NODE_PARAMS>(parameters->alloc);
      const CUresult result = cuGraphAddMemAllocNode(node, graph, dependencies, count, &allocation);
      if (result == CUDA_SUCCESS) parameters->alloc.dptr = allocation.dptr;
      return result;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return cuGraphAddMemFreeNode(node, graph, dependencies, count, parameters->free.dptr);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      const auto batch = older<CUDA_BATCH_MEM_OP_NODE_PARAMS>(parameters->memOp);
      return cuGraphAddBatchMemOpNode(node, graph, dependencies, count, &batch);
    }
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return add_conditional_node(node, graph, dependencies, count, &parameters->conditional);
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
      return CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

bool is_reserved_zero(const CUgraphNodeParams& parameters) {
  return std::ranges::all_of(parameters.reserved0, [](int value) { return value == 0; });
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

extern "C" {

CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                           const CUgraphEdgeData* edges, size_t count,
                           CUgraphNodeParams* parameters) {
  if (!node || !parameters || (count > 0 && !dependencies) || !is_reserved_zero(*parameters)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  const bool is_plain = !edges || std::all_of(edges, edges + count, [](const auto& edge) {
    return edge.type == CU_GRAPH_DEPENDENCY_TYPE_DEFAULT && edge.from_port == 0 &&
           edge.to_port == 0;
  });
  if (is_plain) return add_node(node, graph, dependencies, count, parameters);
  // Add the node without edges first, because only cuGraphAddDependencies_v2 takes edge data.
  CUgraphNode added = nullptr;
  RCUDA_RETURN_IF_CUDA_ERROR(add_node(&added, graph, nullptr, 0, parameters));
  const std::vector<CUgraphNode> to(count, added);
  const CUresult result = cuGraphAddDependencies_v2(graph, dependencies, to.data(), edges, count);
  if (result != CUDA_SUCCESS) {
    (void)cuGraphDestroyNode(added);
    return result;
  }
  *node = added;
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* parameters) {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  switch (parameters->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const auto kernel = older<CUDA_KERNEL_NODE_PARAMS>(parameters->kernel);
      return cuGraphKernelNodeSetParams_v2(node, &kernel);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return cuGraphMemcpyNodeSetParams(node, &parameters->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const auto fill = older<CUDA_MEMSET_NODE_PARAMS>(parameters->memset);
      return cuGraphMemsetNodeSetParams(node, &fill);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const auto host = older<CUDA_HOST_NODE_PARAMS>(parameters->host);
      return cuGraphHostNodeSetParams(node, &host);
    }
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      const auto batch = older<CUDA_BATCH_MEM_OP_NODE_PARAMS>(parameters->memOp);
      return cuGraphBatchMemOpNodeSetParams(node, &batch);
    }
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return cuGraphEventRecordNodeSetEvent(node, parameters->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return cuGraphEventWaitNodeSetEvent(node, parameters->eventWait.event);
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult cuGraphExecNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                  CUgraphNodeParams* parameters) {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  switch (parameters->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const auto kernel = older<CUDA_KERNEL_NODE_PARAMS>(parameters->kernel);
      return cuGraphExecKernelNodeSetParams_v2(executable, node, &kernel);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return cuGraphExecMemcpyNodeSetParams(executable, node, &parameters->memcpy.copyParams,
                                            context_or_current(parameters->memcpy.copyCtx));
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const auto fill = older<CUDA_MEMSET_NODE_PARAMS>(parameters->memset);
      return cuGraphExecMemsetNodeSetParams(executable, node, &fill,
                                            context_or_current(parameters->memset.ctx));
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const auto host = older<CUDA_HOST_NODE_PARAMS>(parameters->host);
      return cuGraphExecHostNodeSetParams(executable, node, &host);
    }
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return cuGraphExecChildGraphNodeSetParams(executable, node, parameters->graph.graph);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      const auto batch = older<CUDA_BATCH_MEM_OP_NODE_PARAMS>(parameters->memOp);
      return cuGraphExecBatchMemOpNodeSetParams(executable, node, &batch);
    }
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return cuGraphExecEventRecordNodeSetEvent(executable, node, parameters->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return cuGraphExecEventWaitNodeSetEvent(executable, node, parameters->eventWait.event);
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // extern "C"
