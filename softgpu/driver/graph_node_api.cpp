// Nodes of graphs: adds nodes, and reads and changes their parameters.
#include <algorithm>
#include <utility>
#include <vector>

#include <cuda.h>

#include "softgpu/driver/condition.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/event.h"
#include "softgpu/driver/graph.h"
#include "softgpu/driver/graph_edit.h"
#include "softgpu/driver/graph_memory.h"
#include "softgpu/driver/graph_node_params.h"
#include "softgpu/driver/stream.h"

using namespace softgpu::driver;

namespace {

// The place of a new node: the arguments shared by all functions that add one.
struct Place {
  CUgraphNode* node;
  CUgraph graph;
  const CUgraphNode* dependencies;
  size_t count;
  const CUgraphEdgeData* edge_data = nullptr;
};

CUresult check_place(const Place& place, std::shared_ptr<Graph>* graph,
                     std::vector<GraphEdge>* edges) {
  if (CUresult result = check_initialized()) return result;
  *graph = graph_from_handle(place.graph);
  if (place.node == nullptr || *graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result =
          find_edges(**graph, place.dependencies, place.edge_data, place.count, edges)) {
    return result;
  }
  return has_duplicates(*edges) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult insert(const Place& place, NodeContent content) {
  std::shared_ptr<Graph> graph;
  std::vector<GraphEdge> edges;
  std::lock_guard lock(graph_mutex());
  if (CUresult result = check_place(place, &graph, &edges)) return result;
  if (const auto* free = std::get_if<FreeOperation>(&content.operation)) {
    if (graph->frees(free->address)) return CUDA_ERROR_INVALID_VALUE;
  }
  GraphNode* node =
      graph->add(content.type, std::move(content.operation), std::move(content.context), edges);
  *place.node = node->handle();
  return CUDA_SUCCESS;
}

// params->handle must have been made for the graph, and have no node yet.
CUresult add_conditional(const Place& place, CUDA_CONDITIONAL_NODE_PARAMS* params) {
  const std::shared_ptr<Condition> condition = Condition::find(params->handle);
  std::shared_ptr<Graph> graph;
  std::vector<GraphEdge> edges;
  std::lock_guard lock(graph_mutex());
  if (CUresult result = check_place(place, &graph, &edges)) return result;
  const auto& own = graph->conditions;
  if (condition == nullptr || condition->node != nullptr ||
      std::find(own.begin(), own.end(), condition) == own.end()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  NodeContent content;
  if (CUresult result = make_conditional_node(params, &content)) return result;
  GraphNode* const node =
      graph->add(content.type, std::move(content.operation), std::move(content.context), edges);
  condition->node = node;
  *place.node = node->handle();
  params->phGraph_out = std::get<ConditionalOperation>(node->operation).handles.data();
  return CUDA_SUCCESS;
}

// Checks the place before it calls `make`, because `make` may reserve memory.
template <typename Make>
CUresult add_node(const Place& place, Make make) {
  {
    std::shared_ptr<Graph> graph;
    std::vector<GraphEdge> edges;
    std::lock_guard lock(graph_mutex());
    if (CUresult result = check_place(place, &graph, &edges)) return result;
  }
  NodeContent content;
  if (CUresult result = make(&content)) return result;
  return insert(place, std::move(content));
}

CUresult find_node(CUgraphNode handle, CUgraphNodeType type, std::shared_ptr<GraphNode>* node) {
  if (CUresult result = check_initialized()) return result;
  *node = node_from_handle(handle);
  if (*node == nullptr || (*node)->type != type) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

template <typename Make>
CUresult change_node(CUgraphNode handle, CUgraphNodeType type, Make make) {
  std::shared_ptr<GraphNode> node;
  if (CUresult result = find_node(handle, type, &node)) return result;
  NodeContent content;
  if (CUresult result = make(&content)) return result;
  if (content.type != type) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(graph_mutex());
  if (const auto* before = std::get_if<KernelOperation>(&node->operation)) {
    std::get<KernelOperation>(content.operation).cooperative = before->cooperative;
  }
  node->operation = std::move(content.operation);
  if (content.context != nullptr) node->context = std::move(content.context);
  return CUDA_SUCCESS;
}

template <typename Params, typename Read>
CUresult read_node(CUgraphNode handle, CUgraphNodeType type, Params* params, Read read) {
  std::shared_ptr<GraphNode> node;
  if (CUresult result = find_node(handle, type, &node)) return result;
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(graph_mutex());
  read(*node, params);
  return CUDA_SUCCESS;
}

CUresult kernel_attribute(CUgraphNode handle, std::shared_ptr<GraphNode>* node, const void* value) {
  if (CUresult result = find_node(handle, CU_GRAPH_NODE_TYPE_KERNEL, node)) return result;
  return value == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuGraphAddKernelNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                      const CUgraphNode* dependencies, size_t numDependencies,
                                      const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  return add_node({phGraphNode, hGraph, dependencies, numDependencies},
                  [&](NodeContent* content) { return make_kernel_node(nodeParams, content); });
}

CUresult CUDAAPI cuGraphAddKernelNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph,
                                         const CUgraphNode* dependencies, size_t numDependencies,
                                         const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  return add_node({phGraphNode, hGraph, dependencies, numDependencies},
                  [&](NodeContent* content) { return make_kernel_node(nodeParams, content); });
}

CUresult CUDAAPI cuGraphKernelNodeGetParams(CUgraphNode hNode,
                                            CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  return read_node(hNode, CU_GRAPH_NODE_TYPE_KERNEL, nodeParams,
                   [](GraphNode& node, CUDA_KERNEL_NODE_PARAMS_v1* params) {
                     const CUDA_KERNEL_NODE_PARAMS_v2 all = kernel_params_of(node);
                     *params = {all.func,         all.gridDimX,  all.gridDimY,  all.gridDimZ,
                                all.blockDimX,    all.blockDimY, all.blockDimZ, all.sharedMemBytes,
                                all.kernelParams, all.extra};
                   });
}

CUresult CUDAAPI cuGraphKernelNodeGetParams_v2(CUgraphNode hNode,
                                               CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  return read_node(
      hNode, CU_GRAPH_NODE_TYPE_KERNEL, nodeParams,
      [](GraphNode& node, CUDA_KERNEL_NODE_PARAMS* params) { *params = kernel_params_of(node); });
}

CUresult CUDAAPI cuGraphKernelNodeSetParams(CUgraphNode hNode,
                                            const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  return change_node(hNode, CU_GRAPH_NODE_TYPE_KERNEL,
                     [&](NodeContent* content) { return make_kernel_node(nodeParams, content); });
}

CUresult CUDAAPI cuGraphKernelNodeSetParams_v2(CUgraphNode hNode,
                                               const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  return change_node(hNode, CU_GRAPH_NODE_TYPE_KERNEL,
                     [&](NodeContent* content) { return make_kernel_node(nodeParams, content); });
}

CUresult CUDAAPI cuGraphAddMemcpyNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                      const CUgraphNode* dependencies, size_t numDependencies,
                                      const CUDA_MEMCPY3D* copyParams, CUcontext ctx) {
  return add_node({phGraphNode, hGraph, dependencies, numDependencies},
                  [&](NodeContent* content) { return make_copy_node(copyParams, ctx, content); });
}

CUresult CUDAAPI cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D* nodeParams) {
  return read_node(hNode, CU_GRAPH_NODE_TYPE_MEMCPY, nodeParams,
                   [](GraphNode& node, CUDA_MEMCPY3D* params) { *params = copy_params_of(node); });
}

CUresult CUDAAPI cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D* nodeParams) {
  return change_node(hNode, CU_GRAPH_NODE_TYPE_MEMCPY, [&](NodeContent* content) {
    return make_copy_node(nodeParams, nullptr, content);
  });
}

CUresult CUDAAPI cuGraphAddMemsetNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                      const CUgraphNode* dependencies, size_t numDependencies,
                                      const CUDA_MEMSET_NODE_PARAMS* memsetParams, CUcontext ctx) {
  return add_node({phGraphNode, hGraph, dependencies, numDependencies},
                  [&](NodeContent* content) { return make_fill_node(memsetParams, ctx, content); });
}

CUresult CUDAAPI cuGraphMemsetNodeGetParams(CUgraphNode hNode,
                                            CUDA_MEMSET_NODE_PARAMS* nodeParams) {
  return read_node(
      hNode, CU_GRAPH_NODE_TYPE_MEMSET, nodeParams,
      [](GraphNode& node, CUDA_MEMSET_NODE_PARAMS* params) { *params = fill_params_of(node); });
}

CUresult CUDAAPI cuGraphMemsetNodeSetParams(CUgraphNode hNode,
                                            const CUDA_MEMSET_NODE_PARAMS* nodeParams) {
  return change_node(hNode, CU_GRAPH_NODE_TYPE_MEMSET, [&](NodeContent* content) {
    return make_fill_node(nodeParams, nullptr, content);
  });
}

CUresult CUDAAPI cuGraphAddHostNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                    const CUgraphNode* dependencies, size_t numDependencies,
                                    const CUDA_HOST_NODE_PARAMS* nodeParams) {
  return add_node({phGraphNode, hGraph, dependencies, numDependencies},
                  [&](NodeContent* content) { return make_host_node(nodeParams, content); });
}

CUresult CUDAAPI cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS* nodeParams) {
  return read_node(hNode, CU_GRAPH_NODE_TYPE_HOST, nodeParams,
                   [](GraphNode& node, CUDA_HOST_NODE_PARAMS* params) {
                     const auto& host = std::get<HostOperation>(node.operation);
                     *params = {host.function, host.user_data};
                   });
}

CUresult CUDAAPI cuGraphHostNodeSetParams(CUgraphNode hNode,
                                          const CUDA_HOST_NODE_PARAMS* nodeParams) {
  return change_node(hNode, CU_GRAPH_NODE_TYPE_HOST,
                     [&](NodeContent* content) { return make_host_node(nodeParams, content); });
}

CUresult CUDAAPI cuGraphAddChildGraphNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                          const CUgraphNode* dependencies, size_t numDependencies,
                                          CUgraph childGraph) {
  return add_node({phGraphNode, hGraph, dependencies, numDependencies},
                  [&](NodeContent* content) { return make_child_node(childGraph, content); });
}

CUresult CUDAAPI cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph* phGraph) {
  return read_node(hNode, CU_GRAPH_NODE_TYPE_GRAPH, phGraph, [](GraphNode& node, CUgraph* graph) {
    *graph = std::get<ChildGraphOperation>(node.operation).graph->handle();
  });
}

CUresult CUDAAPI cuGraphAddEmptyNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                     const CUgraphNode* dependencies, size_t numDependencies) {
  return add_node({phGraphNode, hGraph, dependencies, numDependencies},
                  [](NodeContent*) { return CUDA_SUCCESS; });
}

CUresult CUDAAPI cuGraphAddEventRecordNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                           const CUgraphNode* dependencies, size_t numDependencies,
                                           CUevent event) {
  return add_node({phGraphNode, hGraph, dependencies, numDependencies},
                  [&](NodeContent* content) { return make_event_record_node(event, content); });
}

CUresult CUDAAPI cuGraphEventRecordNodeGetEvent(CUgraphNode hNode, CUevent* event_out) {
  return read_node(hNode, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event_out,
                   [](GraphNode& node, CUevent* event) {
                     *event = std::get<EventRecordOperation>(node.operation).event->handle();
                   });
}

CUresult CUDAAPI cuGraphEventRecordNodeSetEvent(CUgraphNode hNode, CUevent event) {
  return change_node(hNode, CU_GRAPH_NODE_TYPE_EVENT_RECORD,
                     [&](NodeContent* content) { return make_event_record_node(event, content); });
}

CUresult CUDAAPI cuGraphAddEventWaitNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                         const CUgraphNode* dependencies, size_t numDependencies,
                                         CUevent event) {
  return add_node({phGraphNode, hGraph, dependencies, numDependencies},
                  [&](NodeContent* content) { return make_event_wait_node(event, content); });
}

CUresult CUDAAPI cuGraphEventWaitNodeGetEvent(CUgraphNode hNode, CUevent* event_out) {
  return read_node(hNode, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event_out,
                   [](GraphNode& node, CUevent* event) {
                     *event = std::get<EventWaitOperation>(node.operation).event->handle();
                   });
}

CUresult CUDAAPI cuGraphEventWaitNodeSetEvent(CUgraphNode hNode, CUevent event) {
  return change_node(hNode, CU_GRAPH_NODE_TYPE_WAIT_EVENT,
                     [&](NodeContent* content) { return make_event_wait_node(event, content); });
}

CUresult CUDAAPI cuGraphAddBatchMemOpNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                          const CUgraphNode* dependencies, size_t numDependencies,
                                          const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
  return add_node({phGraphNode, hGraph, dependencies, numDependencies},
                  [&](NodeContent* content) { return make_mem_op_node(nodeParams, content); });
}

CUresult CUDAAPI cuGraphBatchMemOpNodeGetParams(CUgraphNode hNode,
                                                CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams_out) {
  return read_node(hNode, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, nodeParams_out,
                   [](GraphNode& node, CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
                     auto& batch = std::get<MemOpOperation>(node.operation);
                     *params = {node.context->handle(),
                                static_cast<unsigned>(batch.operations.size()),
                                batch.operations.data(), 0};
                   });
}

CUresult CUDAAPI cuGraphBatchMemOpNodeSetParams(CUgraphNode hNode,
                                                const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
  return change_node(hNode, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
                     [&](NodeContent* content) { return make_mem_op_node(nodeParams, content); });
}

CUresult CUDAAPI cuGraphAddMemAllocNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                        const CUgraphNode* dependencies, size_t numDependencies,
                                        CUDA_MEM_ALLOC_NODE_PARAMS* nodeParams) {
  return add_node({phGraphNode, hGraph, dependencies, numDependencies},
                  [&](NodeContent* content) { return make_allocate_node(nodeParams, content); });
}

CUresult CUDAAPI cuGraphMemAllocNodeGetParams(CUgraphNode hNode,
                                              CUDA_MEM_ALLOC_NODE_PARAMS* params_out) {
  return read_node(hNode, CU_GRAPH_NODE_TYPE_MEM_ALLOC, params_out,
                   [](GraphNode& node, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
                     *params = std::get<AllocateOperation>(node.operation).memory->params();
                   });
}

CUresult CUDAAPI cuGraphAddMemFreeNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                       const CUgraphNode* dependencies, size_t numDependencies,
                                       CUdeviceptr dptr) {
  return add_node({phGraphNode, hGraph, dependencies, numDependencies},
                  [&](NodeContent* content) { return make_free_node(dptr, content); });
}

CUresult CUDAAPI cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr* dptr_out) {
  return read_node(hNode, CU_GRAPH_NODE_TYPE_MEM_FREE, dptr_out,
                   [](GraphNode& node, CUdeviceptr* address) {
                     *address = std::get<FreeOperation>(node.operation).address;
                   });
}

CUresult CUDAAPI cuGraphConditionalHandleCreate(CUgraphConditionalHandle* pHandle_out,
                                                CUgraph hGraph, CUcontext ctx,
                                                unsigned int defaultLaunchValue,
                                                unsigned int flags) {
  if (CUresult result = check_initialized()) return result;
  const std::shared_ptr<Graph> graph = graph_from_handle(hGraph);
  if (pHandle_out == nullptr || graph == nullptr ||
      (flags & ~unsigned{CU_GRAPH_COND_ASSIGN_DEFAULT}) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_ptr<Context> context;
  if (CUresult result = find_context(ctx, &context)) return result;
  std::lock_guard lock(graph_mutex());
  graph->conditions.push_back(
      Condition::make(defaultLaunchValue, (flags & CU_GRAPH_COND_ASSIGN_DEFAULT) != 0));
  *pHandle_out = graph->conditions.back()->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphAddNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                const CUgraphNode* dependencies, size_t numDependencies,
                                CUgraphNodeParams* nodeParams) {
  return cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, nullptr, numDependencies, nodeParams);
}

CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph,
                                   const CUgraphNode* dependencies,
                                   const CUgraphEdgeData* dependencyData, size_t numDependencies,
                                   CUgraphNodeParams* nodeParams) {
  const Place place{phGraphNode, hGraph, dependencies, numDependencies, dependencyData};
  if (nodeParams != nullptr && nodeParams->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
    return add_conditional(place, &nodeParams->conditional);
  }
  return add_node(place, [&](NodeContent* content) { return make_node(nodeParams, content); });
}

CUresult CUDAAPI cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams* nodeParams) {
  if (nodeParams == nullptr || nodeParams->type == CU_GRAPH_NODE_TYPE_GRAPH ||
      nodeParams->type == CU_GRAPH_NODE_TYPE_CONDITIONAL ||
      nodeParams->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
      nodeParams->type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return change_node(hNode, nodeParams->type,
                     [&](NodeContent* content) { return make_node(nodeParams, content); });
}

CUresult CUDAAPI cuGraphKernelNodeCopyAttributes(CUgraphNode dst, CUgraphNode src) {
  std::shared_ptr<GraphNode> to, from;
  if (CUresult result = find_node(dst, CU_GRAPH_NODE_TYPE_KERNEL, &to)) return result;
  if (CUresult result = find_node(src, CU_GRAPH_NODE_TYPE_KERNEL, &from)) return result;
  std::lock_guard lock(graph_mutex());
  to->attributes = from->attributes;
  std::get<KernelOperation>(to->operation).cooperative =
      std::get<KernelOperation>(from->operation).cooperative;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphKernelNodeGetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                               CUkernelNodeAttrValue* value_out) {
  std::shared_ptr<GraphNode> node;
  if (CUresult result = kernel_attribute(hNode, &node, value_out)) return result;
  std::lock_guard lock(graph_mutex());
  const KernelNodeAttributes& attributes = node->attributes;
  switch (attr) {
    case CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE:
      value_out->cooperative = std::get<KernelOperation>(node->operation).cooperative ? 1 : 0;
      return CUDA_SUCCESS;
    case CU_KERNEL_NODE_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      value_out->accessPolicyWindow = attributes.access_policy;
      return CUDA_SUCCESS;
    case CU_KERNEL_NODE_ATTRIBUTE_PRIORITY:
      value_out->priority = attributes.priority;
      return CUDA_SUCCESS;
    case CU_KERNEL_NODE_ATTRIBUTE_MEM_SYNC_DOMAIN:
      value_out->memSyncDomain = attributes.memory_domain;
      return CUDA_SUCCESS;
    case CU_KERNEL_NODE_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
      value_out->memSyncDomainMap = attributes.memory_domain_map;
      return CUDA_SUCCESS;
    case CU_KERNEL_NODE_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      value_out->sharedMemCarveout = attributes.preferred_shared_carveout;
      return CUDA_SUCCESS;
    case CU_KERNEL_NODE_ATTRIBUTE_CLUSTER_DIMENSION:
      value_out->clusterDim = {0, 0, 0};
      return CUDA_SUCCESS;
    case CU_KERNEL_NODE_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      value_out->clusterSchedulingPolicyPreference = CU_CLUSTER_SCHEDULING_POLICY_DEFAULT;
      return CUDA_SUCCESS;
    case CU_KERNEL_NODE_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
      value_out->deviceUpdatableKernelNode = {0, nullptr};
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult CUDAAPI cuGraphKernelNodeSetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                               const CUkernelNodeAttrValue* value) {
  std::shared_ptr<GraphNode> node;
  if (CUresult result = kernel_attribute(hNode, &node, value)) return result;
  std::lock_guard lock(graph_mutex());
  KernelNodeAttributes& attributes = node->attributes;
  switch (attr) {
    case CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE:
      std::get<KernelOperation>(node->operation).cooperative = value->cooperative != 0;
      return CUDA_SUCCESS;
    case CU_KERNEL_NODE_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      attributes.access_policy = value->accessPolicyWindow;
      return CUDA_SUCCESS;
    case CU_KERNEL_NODE_ATTRIBUTE_PRIORITY:
      attributes.priority =
          std::clamp(value->priority, kGreatestStreamPriority, kMinStreamPriority);
      return CUDA_SUCCESS;
    case CU_KERNEL_NODE_ATTRIBUTE_MEM_SYNC_DOMAIN:
      attributes.memory_domain = value->memSyncDomain;
      return CUDA_SUCCESS;
    case CU_KERNEL_NODE_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
      attributes.memory_domain_map = value->memSyncDomainMap;
      return CUDA_SUCCESS;
    case CU_KERNEL_NODE_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      attributes.preferred_shared_carveout = value->sharedMemCarveout;
      return CUDA_SUCCESS;
    case CU_KERNEL_NODE_ATTRIBUTE_CLUSTER_DIMENSION:
      return value->clusterDim.x <= 1 && value->clusterDim.y <= 1 && value->clusterDim.z <= 1
                 ? CUDA_SUCCESS
                 : CUDA_ERROR_NOT_SUPPORTED;
    case CU_KERNEL_NODE_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      return CUDA_SUCCESS;
    case CU_KERNEL_NODE_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
      return value->deviceUpdatableKernelNode.deviceUpdatable == 0 ? CUDA_SUCCESS
                                                                   : CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // extern "C"
