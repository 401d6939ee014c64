#include "softgpu/driver/graph_exec.h"

#include <algorithm>
#include <set>
#include <utility>

#include "softgpu/driver/context.h"
#include "softgpu/driver/graph_memory.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/stream.h"

namespace softgpu::driver {
namespace {

bool same_edges(const std::vector<GraphEdge>& mine, const std::vector<GraphEdge>& theirs,
                const std::unordered_map<const GraphNode*, const GraphNode*>& twin) {
  if (mine.size() != theirs.size()) return false;
  std::set<const GraphNode*> expected;
  for (const GraphEdge& edge : mine) expected.insert(twin.at(edge.node));
  return std::all_of(theirs.begin(), theirs.end(),
                     [&](const GraphEdge& edge) { return expected.contains(edge.node); });
}

bool can_be_disabled(CUgraphNodeType type) {
  return type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMCPY ||
         type == CU_GRAPH_NODE_TYPE_MEMSET;
}

}  // namespace

CUresult GraphExec::instantiate(const std::shared_ptr<Graph>& graph, uint64_t flags,
                                std::shared_ptr<GraphExec>* exec) {
  std::lock_guard lock(graph_mutex());
  const bool has_memory = graph->has_memory_nodes();
  if (has_memory && graph->memory_instantiated) return CUDA_ERROR_NOT_SUPPORTED;
  std::shared_ptr<GraphPlan> plan = make_plan(*graph);
  if (plan == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // `shape` serves only for comparisons, so the plan alone holds the user objects.
  std::shared_ptr<Graph> shape = graph->clone();
  shape->release_user_objects();
  *exec = std::make_shared<GraphExec>(std::move(plan), graph, std::move(shape), flags);
  graph->memory_instantiated = has_memory;
  handle_table<GraphExec>().insert(*exec);
  return CUDA_SUCCESS;
}

std::shared_ptr<GraphExec> GraphExec::from_handle(CUgraphExec handle) {
  return handle_table<GraphExec>().find(handle);
}

GraphExec::GraphExec(std::shared_ptr<GraphPlan> plan, std::shared_ptr<Graph> source,
                     std::shared_ptr<Graph> shape, uint64_t flags)
    : flags_(flags), source_(source), shape_(std::move(shape)), plan_(std::move(plan)) {}

GraphExec::~GraphExec() {
  std::lock_guard lock(graph_mutex());
  drop_graph(*shape_);
  // Only an executable with memory nodes has set the flag. Without such nodes, this executable
  // must not clear a flag that another executable has set.
  const auto source = source_.lock();
  if (source != nullptr && shape_->has_memory_nodes()) source->memory_instantiated = false;
}

CUresult GraphExec::launch(Stream& stream) {
  stream.wait_for_room();
  std::lock_guard lock(mutex_);
  std::vector<Point> waits;
  if (!last_launch_.reached()) waits.push_back(last_launch_);
  const bool frees = (flags_ & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
  std::vector<std::shared_ptr<Allocation>> allocations;
  for (const auto& memory : plan_->memory) {
    auto allocation = memory_registry().find_base(memory->address());
    if (allocation == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!allocation->freeing && !frees) return CUDA_ERROR_INVALID_VALUE;
    allocations.push_back(std::move(allocation));
  }
  // A launch that is refused above has changed nothing.
  for (const auto& allocation : allocations) {
    if (!allocation->freeing) {
      if (CUresult result = stream.enqueue_at_once(FreeOperation{allocation->address}, waits)) {
        return result;
      }
    }
    allocation->freeing = false;
  }
  // Later calls see the state after the launch: memory that the graph frees is no longer allocated,
  // whichever graph allocated it.
  for (const CUdeviceptr address : plan_->freed) {
    const auto allocation = memory_registry().find_base(address);
    if (allocation != nullptr && allocation->kind == MemoryKind::kGraph) allocation->freeing = true;
  }
  auto run = std::make_shared<GraphRun>(plan_, stream.context());
  if (CUresult result =
          stream.enqueue_at_once(GraphLaunchOperation{run}, std::move(waits), &last_launch_)) {
    return result;
  }
  run->publish_events(*plan_);
  return CUDA_SUCCESS;
}

GraphPlan& GraphExec::changeable_plan() {
  // Running launches keep the plan they started with. use_count() does not order their reads before
  // the writes below; reached() does (acquire).
  if (plan_.use_count() > 1 || !last_launch_.reached()) {
    plan_ = std::make_shared<GraphPlan>(*plan_);
  }
  return *plan_;
}

const uint32_t* GraphExec::index_of(uint64_t node_id) const {
  const auto found = plan_->by_id.find(node_id);
  return found == plan_->by_id.end() ? nullptr : &found->second;
}

CUgraphExecUpdateResult GraphExec::match(const Graph& mine, const Graph& theirs, Changes* changes,
                                         CUgraphExecUpdateResultInfo* info) const {
  if (mine.nodes().size() != theirs.nodes().size()) {
    return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  }
  // Pairs the nodes of the two graphs by their position in topological_order(), which depends on
  // the order in which nodes and edges were made.
  const std::vector<GraphNode*> my_order = mine.topological_order();
  const std::vector<GraphNode*> their_order = theirs.topological_order();
  if (my_order.size() != their_order.size()) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  std::unordered_map<const GraphNode*, const GraphNode*> twin;
  for (size_t i = 0; i < my_order.size(); ++i) twin[my_order[i]] = their_order[i];
  for (size_t i = 0; i < my_order.size(); ++i) {
    const GraphNode& old_node = *my_order[i];
    GraphNode& new_node = *their_order[i];
    info->errorNode = new_node.handle();
    if (old_node.type != new_node.type) return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    if (!same_edges(old_node.dependencies, new_node.dependencies, twin) ||
        !same_edges(old_node.dependents, new_node.dependents, twin)) {
      return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    }
    if (old_node.context != new_node.context) {
      return old_node.type == CU_GRAPH_NODE_TYPE_KERNEL
                 ? CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE
                 : CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    }
    std::shared_ptr<const PlannedBodies> bodies;
    if (const auto* child = std::get_if<ChildGraphOperation>(&old_node.operation)) {
      const auto& other = std::get<ChildGraphOperation>(new_node.operation);
      const CUgraphExecUpdateResult result = match(*child->graph, *other.graph, changes, info);
      if (result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return result;
    } else if (const auto* old_one = std::get_if<ConditionalOperation>(&old_node.operation)) {
      const auto& new_one = std::get<ConditionalOperation>(new_node.operation);
      if (old_one->type != new_one.type || old_one->bodies.size() != new_one.bodies.size()) {
        return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
      }
      Changes of_body;  // apply() replaces the bodies as a whole
      for (size_t body = 0; body < old_one->bodies.size(); ++body) {
        const CUgraphExecUpdateResult result =
            match(*old_one->bodies[body], *new_one.bodies[body], &of_body, info);
        if (result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return result;
      }
      bodies = plan_bodies(new_one);
      if (bodies == nullptr) return CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
    }
    if (const uint32_t* index = index_of(old_node.origin)) {
      changes->push_back({*index, &new_node, std::move(bodies)});
    }
  }
  info->errorNode = nullptr;
  return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

// Also replaces the references to user objects of child graphs by those of the new child graphs.
void GraphExec::apply(const Changes& changes) {
  GraphPlan& plan = changeable_plan();
  for (const auto& [index, node, bodies] : changes) {
    if (const auto* child = std::get_if<ChildGraphOperation>(&node->operation)) {
      plan.nodes[index].user_objects = std::make_shared<const HeldUserObjects>(*child->graph);
      continue;
    }
    if (bodies != nullptr) {
      plan.nodes[index].bodies = bodies;
      continue;
    }
    // Memory nodes keep their addresses.
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
      continue;
    }
    plan.nodes[index].operation = node->operation;
  }
}

CUresult GraphExec::update(const Graph& graph, CUgraphExecUpdateResultInfo* info) {
  std::lock_guard graphs(graph_mutex());
  std::lock_guard lock(mutex_);
  Changes changes;
  *info = {};
  info->result = match(*shape_, graph, &changes, info);
  if (info->result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  apply(changes);
  changeable_plan().user_objects = std::make_shared<const HeldUserObjects>(graph);
  return CUDA_SUCCESS;
}

CUresult GraphExec::set_params(const GraphNode& node, NodeContent content) {
  std::lock_guard lock(mutex_);
  const uint32_t* index = index_of(node.id);
  if (index == nullptr || plan_->nodes[*index].type != content.type ||
      (content.context != nullptr && plan_->nodes[*index].context != content.context)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // As on an H200, an update cannot replace unified addresses by addresses of known memory types,
  // nor the reverse.
  if (const auto* copy = std::get_if<CopyOperation>(&plan_->nodes[*index].operation);
      copy != nullptr && copy->unified != std::get<CopyOperation>(content.operation).unified) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // `cooperative` is an attribute of the node, not a parameter of the launch.
  const auto* before = std::get_if<KernelOperation>(&plan_->nodes[*index].operation);
  if (before != nullptr) {
    std::get<KernelOperation>(content.operation).cooperative = before->cooperative;
  }
  changeable_plan().nodes[*index].operation = std::move(content.operation);
  return CUDA_SUCCESS;
}

CUresult GraphExec::set_child_params(const GraphNode& node, const Graph& child) {
  std::lock_guard graphs(graph_mutex());
  std::lock_guard lock(mutex_);
  const uint32_t* index = index_of(node.id);
  if (index == nullptr || plan_->nodes[*index].type != CU_GRAPH_NODE_TYPE_GRAPH) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto mine = std::find_if(shape_->nodes().begin(), shape_->nodes().end(),
                                 [&](const auto& other) { return other->origin == node.id; });
  if (mine == shape_->nodes().end()) return CUDA_ERROR_INVALID_VALUE;
  Changes changes;
  CUgraphExecUpdateResultInfo info{};
  const auto& current = std::get<ChildGraphOperation>((*mine)->operation);
  if (match(*current.graph, child, &changes, &info) != CU_GRAPH_EXEC_UPDATE_SUCCESS) {
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  apply(changes);
  changeable_plan().nodes[*index].user_objects = std::make_shared<const HeldUserObjects>(child);
  return CUDA_SUCCESS;
}

CUresult GraphExec::set_enabled(const GraphNode& node, bool enabled) {
  std::lock_guard lock(mutex_);
  const uint32_t* index = index_of(node.id);
  if (index == nullptr || !can_be_disabled(node.type)) return CUDA_ERROR_INVALID_VALUE;
  changeable_plan().nodes[*index].enabled = enabled;
  return CUDA_SUCCESS;
}

CUresult GraphExec::enabled(const GraphNode& node, bool* enabled) {
  std::lock_guard lock(mutex_);
  const uint32_t* index = index_of(node.id);
  if (index == nullptr || !can_be_disabled(node.type)) return CUDA_ERROR_INVALID_VALUE;
  *enabled = plan_->nodes[*index].enabled;
  return CUDA_SUCCESS;
}

}  // namespace softgpu::driver
