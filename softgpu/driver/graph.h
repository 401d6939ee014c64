// Graphs: operations and the edges between them, as captured or as built by hand.
//
// A Graph owns its nodes. CUgraph and CUgraphNode are addresses of these objects, checked against
// the handle tables. A child graph belongs to the node that holds it. Threads: graph_mutex() guards
// all graphs, captures, and the capture state of events; the functions here expect it to be held
// unless they say otherwise. Building graphs is rare and short; launches take other locks
// (graph_exec.h). Nothing here blocks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <cuda.h>

#include "softgpu/driver/operation.h"

namespace softgpu::driver {

class Condition;
class UserObject;
struct GraphNode;

std::mutex& graph_mutex();

struct GraphEdge {
  GraphNode* node = nullptr;
  CUgraphEdgeData data{};  // programmatic edges are kept and treated as full dependencies
};

// Kernel node attributes that have no effect here and are only stored.
struct KernelNodeAttributes {
  CUaccessPolicyWindow access_policy{};
  int priority = 0;
  CUlaunchMemSyncDomain memory_domain = CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT;
  CUlaunchMemSyncDomainMap memory_domain_map{0, 1};
  unsigned preferred_shared_carveout = 0;
};

struct GraphNode {
  Graph* graph = nullptr;
  uint64_t id = 0;      // unique in the process
  uint64_t origin = 0;  // id of the node from which this one was cloned
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  Operation operation;
  std::shared_ptr<Context> context;  // context of device work; null for other nodes
  std::vector<GraphEdge> dependencies;
  std::vector<GraphEdge> dependents;

  // Kernel nodes: the pointers that cuGraphKernelNodeGetParams returns, and stored attributes.
  std::vector<void*> parameter_pointers;
  size_t parameter_bytes = 0;
  KernelNodeAttributes attributes;

  CUgraphNode handle() { return reinterpret_cast<CUgraphNode>(this); }
};

class Graph : public std::enable_shared_from_this<Graph> {
 public:
  Graph() = default;
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // A new graph, in the handle table.
  static std::shared_ptr<Graph> make();

  CUgraph handle() { return reinterpret_cast<CUgraph>(this); }
  const std::vector<std::shared_ptr<GraphNode>>& nodes() const { return nodes_; }

  // Adds a node after `dependencies`, which are nodes of this graph.
  GraphNode* add(CUgraphNodeType type, Operation operation, std::shared_ptr<Context> context,
                 std::span<const GraphEdge> dependencies);
  void remove(GraphNode& node);
  // CUDA_ERROR_INVALID_VALUE if the edge already exists (add) or does not exist (remove). Like
  // driver 580, remove_edge() does not compare the edge's data.
  static CUresult add_edge(GraphNode& from, GraphNode& to, const CUgraphEdgeData& data);
  static CUresult remove_edge(GraphNode& from, GraphNode& to);

  // The nodes, each after its dependencies: first the roots in order of creation, then each node
  // once its last dependency is listed. Empty if there is a cycle (or no node).
  std::vector<GraphNode*> topological_order() const;
  // A deep copy, in the handle table. The `origin` of each copied node is the id of its original.
  std::shared_ptr<Graph> clone() const;
  bool has_memory_nodes() const;
  bool has_conditional_nodes() const;
  // Whether a node of the graph frees this memory. A graph may free memory only once, whichever
  // graph allocates it.
  bool frees(CUdeviceptr address) const;

  // The conditions whose handles were made for this graph.
  std::vector<std::shared_ptr<Condition>> conditions;
  // References to user objects, released when the graph is destroyed.
  std::map<std::shared_ptr<UserObject>, unsigned> user_objects;
  // Releases these references now, including those of child graphs.
  void release_user_objects();
  bool is_child = false;   // a node owns it, perhaps as a body: cuGraphDestroy refuses its handle
  bool capturing = false;  // a stream is being captured into it
  bool memory_instantiated = false;  // an executable with memory nodes exists: a second is refused

 private:
  std::vector<std::shared_ptr<GraphNode>> nodes_;
};

// Removes the graph and its nodes, child graphs included, from the handle tables: their handles
// become invalid.
void drop_graph(Graph& graph);

// Need no lock. Null for an unknown handle.
std::shared_ptr<Graph> graph_from_handle(CUgraph handle);
std::shared_ptr<GraphNode> node_from_handle(CUgraphNode handle);

// The graphs that the operation owns: a child graph, or bodies.
std::vector<std::shared_ptr<Graph>> graphs_in(const Operation& operation);

// A copy of an operation for another graph: the graphs in it are cloned, everything else is shared.
Operation clone_operation(const Operation& operation);

}  // namespace softgpu::driver
