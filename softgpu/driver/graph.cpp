#include "softgpu/driver/graph.h"

#include <algorithm>
#include <atomic>
#include <unordered_map>
#include <utility>

#include "softgpu/driver/condition.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/user_object.h"

namespace softgpu::driver {
namespace {

std::atomic<uint64_t> next_node_id{1};

bool has_edge(const GraphNode& from, const GraphNode& to) {
  return std::any_of(from.dependents.begin(), from.dependents.end(),
                     [&](const GraphEdge& edge) { return edge.node == &to; });
}

void erase_edge(std::vector<GraphEdge>& edges, const GraphNode* node) {
  std::erase_if(edges, [&](const GraphEdge& edge) { return edge.node == node; });
}

void drop_node(GraphNode& node) {
  handle_table<GraphNode>().remove(&node);
  if (const auto* conditional = std::get_if<ConditionalOperation>(&node.operation)) {
    // A clone shares the condition, but condition->node is the original node.
    if (conditional->condition->node == &node) conditional->condition->node = nullptr;
  }
  for (const auto& graph : graphs_in(node.operation)) drop_graph(*graph);
}

}  // namespace

std::mutex& graph_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

Graph::~Graph() {
  for (auto& [object, count] : user_objects) object->release(count);
}

void Graph::release_user_objects() {
  for (auto& [object, count] : user_objects) object->release(count);
  user_objects.clear();
  for (const auto& node : nodes_) {
    for (const auto& graph : graphs_in(node->operation)) graph->release_user_objects();
  }
}

std::shared_ptr<Graph> Graph::make() {
  auto graph = std::make_shared<Graph>();
  handle_table<Graph>().insert(graph);
  return graph;
}

GraphNode* Graph::add(CUgraphNodeType type, Operation operation, std::shared_ptr<Context> context,
                      std::span<const GraphEdge> dependencies) {
  auto node = std::make_shared<GraphNode>();
  node->graph = this;
  node->id = next_node_id.fetch_add(1);
  node->type = type;
  node->operation = std::move(operation);
  node->context = std::move(context);
  for (const GraphEdge& edge : dependencies) add_edge(*edge.node, *node, edge.data);
  nodes_.push_back(node);
  handle_table<GraphNode>().insert(node);
  return node.get();
}

void Graph::remove(GraphNode& node) {
  for (const GraphEdge& edge : node.dependencies) erase_edge(edge.node->dependents, &node);
  for (const GraphEdge& edge : node.dependents) erase_edge(edge.node->dependencies, &node);
  drop_node(node);
  std::erase_if(nodes_, [&](const auto& other) { return other.get() == &node; });
}

CUresult Graph::add_edge(GraphNode& from, GraphNode& to, const CUgraphEdgeData& data) {
  if (&from == &to || has_edge(from, to)) return CUDA_ERROR_INVALID_VALUE;
  from.dependents.push_back({&to, data});
  to.dependencies.push_back({&from, data});
  return CUDA_SUCCESS;
}

CUresult Graph::remove_edge(GraphNode& from, GraphNode& to) {
  const auto edge = std::find_if(from.dependents.begin(), from.dependents.end(),
                                 [&](const GraphEdge& other) { return other.node == &to; });
  if (edge == from.dependents.end()) return CUDA_ERROR_INVALID_VALUE;
  from.dependents.erase(edge);
  erase_edge(to.dependencies, &from);
  return CUDA_SUCCESS;
}

std::vector<GraphNode*> Graph::topological_order() const {
  std::unordered_map<const GraphNode*, size_t> open;
  std::vector<GraphNode*> order;
  order.reserve(nodes_.size());
  for (const auto& node : nodes_) {
    open[node.get()] = node->dependencies.size();
    if (node->dependencies.empty()) order.push_back(node.get());
  }
  for (size_t i = 0; i < order.size(); ++i) {
    for (const GraphEdge& edge : order[i]->dependents) {
      if (--open[edge.node] == 0) order.push_back(edge.node);
    }
  }
  if (order.size() != nodes_.size()) order.clear();
  return order;
}

std::shared_ptr<Graph> Graph::clone() const {
  std::shared_ptr<Graph> copy = make();
  std::unordered_map<const GraphNode*, GraphNode*> copies;
  for (const auto& node : nodes_) {
    GraphNode* twin = copy->add(node->type, clone_operation(node->operation), node->context, {});
    twin->origin = node->id;
    twin->attributes = node->attributes;
    copies[node.get()] = twin;
  }
  for (const auto& node : nodes_) {
    // Both lists keep their order, because updates pair nodes by topological_order(), which depends
    // on the order.
    GraphNode* twin = copies[node.get()];
    for (const GraphEdge& edge : node->dependencies) {
      twin->dependencies.push_back({copies[edge.node], edge.data});
    }
    for (const GraphEdge& edge : node->dependents) {
      twin->dependents.push_back({copies[edge.node], edge.data});
    }
  }
  for (const auto& [object, count] : user_objects) {
    object->retain(count);
    copy->user_objects[object] = count;
  }
  return copy;
}

bool Graph::has_memory_nodes() const {
  return std::any_of(nodes_.begin(), nodes_.end(), [](const auto& node) {
    const auto inner = graphs_in(node->operation);
    return node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
           node->type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
           std::any_of(inner.begin(), inner.end(),
                       [](const auto& graph) { return graph->has_memory_nodes(); });
  });
}

// A graph with conditional nodes cannot be a child graph, so only the graph's own nodes matter.
bool Graph::has_conditional_nodes() const {
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [](const auto& node) { return node->type == CU_GRAPH_NODE_TYPE_CONDITIONAL; });
}

bool Graph::frees(CUdeviceptr address) const {
  return std::any_of(nodes_.begin(), nodes_.end(), [&](const auto& node) {
    const auto* free = std::get_if<FreeOperation>(&node->operation);
    return free != nullptr && free->address == address;
  });
}

void drop_graph(Graph& graph) {
  for (const auto& node : graph.nodes()) drop_node(*node);
  handle_table<Graph>().remove(&graph);
}

std::shared_ptr<Graph> graph_from_handle(CUgraph handle) {
  return handle_table<Graph>().find(handle);
}

std::shared_ptr<GraphNode> node_from_handle(CUgraphNode handle) {
  return handle_table<GraphNode>().find(handle);
}

std::vector<std::shared_ptr<Graph>> graphs_in(const Operation& operation) {
  if (const auto* child = std::get_if<ChildGraphOperation>(&operation)) return {child->graph};
  if (const auto* conditional = std::get_if<ConditionalOperation>(&operation)) {
    return conditional->bodies;
  }
  return {};
}

Operation clone_operation(const Operation& operation) {
  const auto clone = [](const Graph& graph) {
    std::shared_ptr<Graph> copy = graph.clone();
    copy->is_child = true;
    return copy;
  };
  if (const auto* child = std::get_if<ChildGraphOperation>(&operation)) {
    return ChildGraphOperation{clone(*child->graph)};
  }
  if (const auto* conditional = std::get_if<ConditionalOperation>(&operation)) {
    ConditionalOperation copy{conditional->condition, conditional->type, {}, {}};
    for (const auto& body : conditional->bodies) {
      copy.bodies.push_back(clone(*body));
      copy.handles.push_back(copy.bodies.back()->handle());
    }
    return copy;
  }
  return operation;
}

}  // namespace softgpu::driver
