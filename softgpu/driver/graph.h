// Graphs: operations and the edges between them, as captured or as built by hand.
//
// A Graph owns its nodes; CUgraph and CUgraphNode are addresses of these objects, checked against
// the handle tables. A child graph belongs to the node that holds it. Threads: graph_mutex() guards
// all graphs, captures and what events know of captures; functions here expect it to be held unless
// they say otherwise. Building graphs is rare and short, launching takes other locks
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

class UserObject;
struct GraphNode;

std::mutex& graph_mutex();

struct GraphEdge {
  GraphNode* node = nullptr;
  CUgraphEdgeData data{};  // programmatic edges are kept and treated as full dependencies
};

// Kernel node attributes that do nothing here and are only remembered.
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
  uint64_t origin = 0;  // id of the node that this one is a clone of
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  Operation operation;
  std::shared_ptr<Context> context;  // where device work is done; null for the rest
  std::vector<GraphEdge> dependencies;
  std::vector<GraphEdge> dependents;

  // Kernel nodes: what cuGraphKernelNodeGetParams points to, and remembered attributes.
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

  // A new graph in the handle table.
  static std::shared_ptr<Graph> make();

  CUgraph handle() { return reinterpret_cast<CUgraph>(this); }
  const std::vector<std::shared_ptr<GraphNode>>& nodes() const { return nodes_; }

  // Adds a node behind `dependencies`, which are nodes of this graph.
  GraphNode* add(CUgraphNodeType type, Operation operation, std::shared_ptr<Context> context,
                 std::span<const GraphEdge> dependencies);
  void remove(GraphNode& node);
  // CUDA_ERROR_INVALID_VALUE when the edge is there already (add) or is not (remove).
  static CUresult add_edge(GraphNode& from, GraphNode& to, const CUgraphEdgeData& data);
  static CUresult remove_edge(GraphNode& from, GraphNode& to, const CUgraphEdgeData* data);

  // Nodes so that each comes after its dependencies and otherwise in order of creation; empty when
  // there is a cycle (or no node).
  std::vector<GraphNode*> topological_order() const;
  // A deep copy, in the handle table, whose nodes' `origin` names this graph's nodes.
  std::shared_ptr<Graph> clone() const;
  bool has_memory_nodes() const;
  // A graph frees memory once at most, whether it allocates it or not.
  bool frees(CUdeviceptr address) const;

  // References to user objects, released when the graph goes.
  std::map<std::shared_ptr<UserObject>, unsigned> user_objects;
  // Gives them back now, and those of child graphs.
  void release_user_objects();
  bool is_child = false;             // owned by a node: may not be destroyed by its handle
  bool capturing = false;            // a stream is being captured into it
  bool memory_instantiated = false;  // graphs with memory nodes have at most one executable

 private:
  std::vector<std::shared_ptr<GraphNode>> nodes_;
};

// Takes the graph and its nodes, child graphs included, out of the handle tables: their handles are
// invalid from now on.
void drop_graph(Graph& graph);

// No lock needed. Null when the handle names nothing.
std::shared_ptr<Graph> graph_from_handle(CUgraph handle);
std::shared_ptr<GraphNode> node_from_handle(CUgraphNode handle);

// A copy of an operation for another graph: child graphs are cloned, the rest is shared.
Operation clone_operation(const Operation& operation);

}  // namespace softgpu::driver
