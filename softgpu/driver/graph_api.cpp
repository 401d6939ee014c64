// Graphs: makes, clones and destroys them, their nodes and their edges.
#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include <cuda.h>

#include "softgpu/driver/context.h"
#include "softgpu/driver/graph.h"
#include "softgpu/driver/graph_edit.h"

using namespace softgpu::driver;

namespace {

// Fills an array like all graph queries: `*count` is its length on entry and the number of nodes on
// return. Unused entries become null. Without an array, only the count is returned. An array of
// length 0 is an error (driver 580 on an H100).
CUresult copy_nodes(const std::vector<GraphNode*>& nodes, CUgraphNode* out, size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (out == nullptr) {
    *count = nodes.size();
    return CUDA_SUCCESS;
  }
  if (*count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < *count; ++i) out[i] = i < nodes.size() ? nodes[i]->handle() : nullptr;
  *count = std::min(*count, nodes.size());
  return CUDA_SUCCESS;
}

CUresult copy_edges(const std::vector<GraphEdge>& edges, CUgraphNode* out, CUgraphEdgeData* data,
                    size_t* count) {
  std::vector<GraphNode*> nodes;
  for (const GraphEdge& edge : edges) nodes.push_back(edge.node);
  if (out == nullptr) {
    return data == nullptr ? copy_nodes(nodes, out, count) : CUDA_ERROR_INVALID_VALUE;
  }
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < std::min(*count, edges.size()); ++i) {
    if (data != nullptr) {
      data[i] = edges[i].data;
    } else if (!is_default(edges[i].data)) {
      return CUDA_ERROR_LOSSY_QUERY;
    }
  }
  return copy_nodes(nodes, out, count);
}

CUresult all_edges(CUgraph handle, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data,
                   size_t* count) {
  if (CUresult result = check_initialized()) return result;
  const std::shared_ptr<Graph> graph = graph_from_handle(handle);
  if (graph == nullptr || count == nullptr || (from == nullptr) != (to == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::lock_guard lock(graph_mutex());
  std::vector<GraphNode*> sources;
  std::vector<GraphEdge> edges;
  for (const auto& node : graph->nodes()) {
    for (const GraphEdge& edge : node->dependents) {
      sources.push_back(node.get());
      edges.push_back(edge);
    }
  }
  size_t room = *count;
  if (CUresult result = copy_edges(edges, to, data, count)) return result;
  return from == nullptr ? CUDA_SUCCESS : copy_nodes(sources, from, &room);
}

CUresult neighbours(CUgraphNode handle, std::vector<GraphEdge> GraphNode::*edges, CUgraphNode* out,
                    CUgraphEdgeData* data, size_t* count) {
  if (CUresult result = check_initialized()) return result;
  const std::shared_ptr<GraphNode> node = node_from_handle(handle);
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(graph_mutex());
  return copy_edges(*node.*edges, out, data, count);
}

CUresult change_edges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to,
                      const CUgraphEdgeData* data, size_t count, bool add) {
  if (CUresult result = check_initialized()) return result;
  const std::shared_ptr<Graph> graph = graph_from_handle(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (count == 0) return CUDA_SUCCESS;
  std::lock_guard lock(graph_mutex());
  std::vector<GraphEdge> sources, targets;
  if (CUresult result = find_edges(*graph, from, data, count, &sources)) return result;
  if (CUresult result = find_edges(*graph, to, nullptr, count, &targets)) return result;
  for (size_t i = 0; i < count; ++i) {
    GraphNode& source = *sources[i].node;
    GraphNode& target = *targets[i].node;
    const CUresult result =
        add ? Graph::add_edge(source, target, sources[i].data) : Graph::remove_edge(source, target);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

const char* type_name(CUgraphNodeType type) {
  constexpr const char* kNames[] = {"kernel",         "memcpy",       "memset",
                                    "host",           "child graph",  "empty",
                                    "event wait",     "event record", "semaphore signal",
                                    "semaphore wait", "mem alloc",    "mem free",
                                    "batch mem op",   "conditional"};
  return kNames[type];
}

void print_graph(std::FILE* file, const Graph& graph) {
  for (const auto& node : graph.nodes()) {
    std::fprintf(file, "  n%llu [label=\"%llu: %s\"];\n", static_cast<unsigned long long>(node->id),
                 static_cast<unsigned long long>(node->id), type_name(node->type));
    for (const GraphEdge& edge : node->dependents) {
      std::fprintf(file, "  n%llu -> n%llu;\n", static_cast<unsigned long long>(node->id),
                   static_cast<unsigned long long>(edge.node->id));
    }
    for (const auto& inner : graphs_in(node->operation)) {
      // The name of a child graph is its node's id. A conditional node may have several bodies, so
      // the name of a body is its address.
      const unsigned long long name = node->type == CU_GRAPH_NODE_TYPE_GRAPH
                                          ? node->id
                                          : reinterpret_cast<uintptr_t>(inner.get());
      std::fprintf(file, "  subgraph cluster_%llu {\n", name);
      print_graph(file, *inner);
      std::fprintf(file, "  }\n");
    }
  }
}

}  // namespace

namespace softgpu::driver {

CUresult find_edges(const Graph& graph, const CUgraphNode* nodes, const CUgraphEdgeData* data,
                    size_t count, std::vector<GraphEdge>* edges) {
  if (count != 0 && nodes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const std::shared_ptr<GraphNode> node = node_from_handle(nodes[i]);
    if (node == nullptr || node->graph != &graph) return CUDA_ERROR_INVALID_VALUE;
    edges->push_back({node.get(), data != nullptr ? data[i] : CUgraphEdgeData{}});
  }
  return CUDA_SUCCESS;
}

bool is_default(const CUgraphEdgeData& data) {
  return data.from_port == 0 && data.to_port == 0 && data.type == CU_GRAPH_DEPENDENCY_TYPE_DEFAULT;
}

bool has_duplicates(const std::vector<GraphEdge>& edges) {
  for (size_t i = 0; i < edges.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (edges[i].node == edges[j].node) return true;
    }
  }
  return false;
}

}  // namespace softgpu::driver

extern "C" {

CUresult CUDAAPI cuGraphCreate(CUgraph* phGraph, unsigned int flags) {
  if (CUresult result = check_initialized()) return result;
  if (phGraph == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *phGraph = Graph::make()->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphDestroy(CUgraph hGraph) {
  if (CUresult result = check_initialized()) return result;
  std::shared_ptr<Graph> graph;  // destroyed after the lock is released
  std::lock_guard lock(graph_mutex());
  graph = graph_from_handle(hGraph);
  if (graph == nullptr || graph->is_child) return CUDA_ERROR_INVALID_VALUE;
  if (graph->capturing) return CUDA_ERROR_ILLEGAL_STATE;
  drop_graph(*graph);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphClone(CUgraph* phGraphClone, CUgraph originalGraph) {
  if (CUresult result = check_initialized()) return result;
  const std::shared_ptr<Graph> graph = graph_from_handle(originalGraph);
  if (graph == nullptr || phGraphClone == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(graph_mutex());
  if (graph->has_memory_nodes() || graph->has_conditional_nodes()) return CUDA_ERROR_NOT_SUPPORTED;
  *phGraphClone = graph->clone()->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphNodeFindInClone(CUgraphNode* phNode, CUgraphNode hOriginalNode,
                                        CUgraph hClonedGraph) {
  if (CUresult result = check_initialized()) return result;
  const std::shared_ptr<Graph> graph = graph_from_handle(hClonedGraph);
  const std::shared_ptr<GraphNode> original = node_from_handle(hOriginalNode);
  if (phNode == nullptr || graph == nullptr || original == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(graph_mutex());
  const auto found = std::find_if(graph->nodes().begin(), graph->nodes().end(),
                                  [&](const auto& node) { return node->origin == original->id; });
  if (found == graph->nodes().end()) return CUDA_ERROR_INVALID_VALUE;
  *phNode = (*found)->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType* type) {
  if (CUresult result = check_initialized()) return result;
  const std::shared_ptr<GraphNode> node = node_from_handle(hNode);
  if (node == nullptr || type == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *type = node->type;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphGetNodes(CUgraph hGraph, CUgraphNode* nodes, size_t* numNodes) {
  if (CUresult result = check_initialized()) return result;
  const std::shared_ptr<Graph> graph = graph_from_handle(hGraph);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(graph_mutex());
  std::vector<GraphNode*> all;
  for (const auto& node : graph->nodes()) all.push_back(node.get());
  return copy_nodes(all, nodes, numNodes);
}

CUresult CUDAAPI cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode* rootNodes, size_t* numRootNodes) {
  if (CUresult result = check_initialized()) return result;
  const std::shared_ptr<Graph> graph = graph_from_handle(hGraph);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(graph_mutex());
  std::vector<GraphNode*> roots;
  for (const auto& node : graph->nodes()) {
    if (node->dependencies.empty()) roots.push_back(node.get());
  }
  return copy_nodes(roots, rootNodes, numRootNodes);
}

CUresult CUDAAPI cuGraphGetEdges(CUgraph hGraph, CUgraphNode* from, CUgraphNode* to,
                                 size_t* numEdges) {
  return all_edges(hGraph, from, to, nullptr, numEdges);
}

CUresult CUDAAPI cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode* from, CUgraphNode* to,
                                    CUgraphEdgeData* edgeData, size_t* numEdges) {
  return all_edges(hGraph, from, to, edgeData, numEdges);
}

CUresult CUDAAPI cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode* dependencies,
                                            size_t* numDependencies) {
  return neighbours(hNode, &GraphNode::dependencies, dependencies, nullptr, numDependencies);
}

CUresult CUDAAPI cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode* dependencies,
                                               CUgraphEdgeData* edgeData, size_t* numDependencies) {
  return neighbours(hNode, &GraphNode::dependencies, dependencies, edgeData, numDependencies);
}

CUresult CUDAAPI cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode* dependentNodes,
                                              size_t* numDependentNodes) {
  return neighbours(hNode, &GraphNode::dependents, dependentNodes, nullptr, numDependentNodes);
}

CUresult CUDAAPI cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode* dependentNodes,
                                                 CUgraphEdgeData* edgeData,
                                                 size_t* numDependentNodes) {
  return neighbours(hNode, &GraphNode::dependents, dependentNodes, edgeData, numDependentNodes);
}

CUresult CUDAAPI cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode* from,
                                        const CUgraphNode* to, size_t numDependencies) {
  return change_edges(hGraph, from, to, nullptr, numDependencies, /*add=*/true);
}

CUresult CUDAAPI cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode* from,
                                           const CUgraphNode* to, const CUgraphEdgeData* edgeData,
                                           size_t numDependencies) {
  return change_edges(hGraph, from, to, edgeData, numDependencies, /*add=*/true);
}

CUresult CUDAAPI cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode* from,
                                           const CUgraphNode* to, size_t numDependencies) {
  return change_edges(hGraph, from, to, nullptr, numDependencies, /*add=*/false);
}

CUresult CUDAAPI cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode* from,
                                              const CUgraphNode* to,
                                              const CUgraphEdgeData* edgeData,
                                              size_t numDependencies) {
  return change_edges(hGraph, from, to, edgeData, numDependencies, /*add=*/false);
}

CUresult CUDAAPI cuGraphDestroyNode(CUgraphNode hNode) {
  if (CUresult result = check_initialized()) return result;
  std::shared_ptr<GraphNode> node;  // destroyed after the lock is released
  std::lock_guard lock(graph_mutex());
  node = node_from_handle(hNode);  // under the lock: while the handle is valid, node->graph exists
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  // A capture in progress still refers to its nodes.
  if (node->graph->capturing) return CUDA_ERROR_ILLEGAL_STATE;
  node->graph->remove(*node);
  return CUDA_SUCCESS;
}

// Prints nodes and edges. The flags that ask for parameters have no effect.
CUresult CUDAAPI cuGraphDebugDotPrint(CUgraph hGraph, const char* path, unsigned int) {
  if (CUresult result = check_initialized()) return result;
  const std::shared_ptr<Graph> graph = graph_from_handle(hGraph);
  if (graph == nullptr || path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
  {
    std::lock_guard lock(graph_mutex());
    std::fprintf(file, "digraph {\n");
    print_graph(file, *graph);
    std::fprintf(file, "}\n");
  }
  return std::fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

}  // extern "C"
