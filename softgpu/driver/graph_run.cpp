#include "softgpu/driver/graph_run.h"

#include <algorithm>
#include <utility>

#include "softgpu/driver/condition.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/event.h"
#include "softgpu/driver/graph_memory.h"
#include "softgpu/driver/interprocess_event.h"
#include "softgpu/driver/stream.h"
#include "softgpu/driver/user_object.h"
#include "softgpu/driver/worker_threads.h"

namespace softgpu::driver {
namespace {

// The most threads of one launch of a graph, because a graph may have thousands of roots. Hardware
// has a limit, too: an H200 runs up to 128 kernels at a time.
constexpr unsigned kMaxBranches = 64;

struct Span {
  uint32_t entry;
  uint32_t exit;
};

void connect(GraphPlan& plan, uint32_t from, uint32_t to) {
  plan.nodes[from].successors.push_back(to);
  ++plan.nodes[to].predecessors;
}

bool append(GraphPlan& plan, const Graph& graph, Span* around);

// Whether a body may contain the graph's nodes, by the list in cuda.h. Searches child graphs.
bool may_be_in_body(const Graph& graph) {
  return std::all_of(graph.nodes().begin(), graph.nodes().end(), [](const auto& node) {
    switch (node->type) {
      case CU_GRAPH_NODE_TYPE_GRAPH:
        return may_be_in_body(*std::get<ChildGraphOperation>(node->operation).graph);
      case CU_GRAPH_NODE_TYPE_KERNEL:
      case CU_GRAPH_NODE_TYPE_EMPTY:
      case CU_GRAPH_NODE_TYPE_MEMCPY:
      case CU_GRAPH_NODE_TYPE_MEMSET:
      case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        return true;
      default:
        return false;
    }
  });
}

bool append_node(GraphPlan& plan, const GraphNode& node, Span* span) {
  span->entry = span->exit = static_cast<uint32_t>(plan.nodes.size());
  plan.by_id[node.id] = span->entry;
  PlanNode& added = plan.nodes.emplace_back();
  added.type = node.type;
  if (const auto* child = std::get_if<ChildGraphOperation>(&node.operation)) {
    added.user_objects = std::make_shared<const HeldUserObjects>(*child->graph);
    return append(plan, *child->graph, span);
  }
  if (const auto* conditional = std::get_if<ConditionalOperation>(&node.operation)) {
    plan.conditional.push_back(span->entry);
    added.context = node.context;
    added.bodies = plan_bodies(*conditional);
    return added.bodies != nullptr;
  }
  added.operation = node.operation;
  added.context = node.context;
  if (const auto* allocate = std::get_if<AllocateOperation>(&node.operation)) {
    plan.memory.push_back(allocate->memory);
  } else if (const auto* free = std::get_if<FreeOperation>(&node.operation)) {
    plan.freed.push_back(free->address);
  }
  return true;
}

// Adds the nodes of `graph` after `around->entry`, if given, and an exit node after them.
bool append(GraphPlan& plan, const Graph& graph, Span* around) {
  const std::vector<GraphNode*> order = graph.topological_order();
  if (order.size() != graph.nodes().size()) return false;
  if (!std::all_of(graph.conditions.begin(), graph.conditions.end(),
                   [](const auto& condition) { return condition->node != nullptr; })) {
    return false;
  }
  std::unordered_map<const GraphNode*, Span> spans;
  for (const GraphNode* node : order) {
    Span span{};
    if (!append_node(plan, *node, &span)) return false;
    spans[node] = span;
    for (const GraphEdge& edge : node->dependencies) {
      connect(plan, spans[edge.node].exit, span.entry);
    }
    if (around != nullptr && node->dependencies.empty()) connect(plan, around->entry, span.entry);
  }
  if (around == nullptr) return true;
  around->exit = static_cast<uint32_t>(plan.nodes.size());
  plan.nodes.emplace_back();
  for (const GraphNode* node : order) {
    if (node->dependents.empty()) connect(plan, spans[node].exit, around->exit);
  }
  if (order.empty()) connect(plan, around->entry, around->exit);
  return true;
}

// Gives the conditions of the plan and its bodies their values for a new launch.
void begin_launch(const GraphPlan& plan) {
  for (const uint32_t index : plan.conditional) {
    const PlannedBodies& bodies = *plan.nodes[index].bodies;
    bodies.condition->begin_launch();
    for (const auto& body : bodies.plans) begin_launch(*body);
  }
}

}  // namespace

std::shared_ptr<GraphPlan> make_plan(const Graph& graph) {
  auto plan = std::make_shared<GraphPlan>();
  plan->user_objects = std::make_shared<const HeldUserObjects>(graph);
  return append(*plan, graph, nullptr) ? plan : nullptr;
}

std::shared_ptr<const PlannedBodies> plan_bodies(const ConditionalOperation& operation) {
  auto bodies = std::make_shared<PlannedBodies>();
  bodies->condition = operation.condition;
  bodies->type = operation.type;
  for (const auto& graph : operation.bodies) {
    std::shared_ptr<const GraphPlan> plan = may_be_in_body(*graph) ? make_plan(*graph) : nullptr;
    if (plan == nullptr) return nullptr;
    bodies->plans.push_back(std::move(plan));
  }
  return bodies;
}

HeldUserObjects::HeldUserObjects(const Graph& graph) : counts_(graph.user_objects) {
  for (const auto& [object, count] : counts_) object->retain(count);
}

HeldUserObjects::~HeldUserObjects() {
  for (const auto& [object, count] : counts_) object->release(count);
}

GraphRun::GraphRun(std::shared_ptr<const GraphPlan> plan, Context& context)
    : plan_(std::move(plan)),
      context_(context),
      pending_(plan_->nodes.size()),
      remaining_(static_cast<uint32_t>(plan_->nodes.size())) {
  std::map<const Event*, std::shared_ptr<EventRecord>> recorded_here;
  for (uint32_t i = 0; i < plan_->nodes.size(); ++i) {
    const PlanNode& node = plan_->nodes[i];
    pending_[i].store(node.predecessors, std::memory_order_relaxed);
    if (const auto* operation = std::get_if<EventRecordOperation>(&node.operation)) {
      auto record = std::make_shared<EventRecord>();
      record->point = {std::make_shared<Timeline>(), 1};
      recorded_here[operation->event.get()] = record;
      records_[i] = std::move(record);
    } else if (const auto* wait = std::get_if<EventWaitOperation>(&node.operation)) {
      const std::shared_ptr<InterprocessEvent>& shared = wait->event->interprocess;
      if (const auto own = recorded_here.find(wait->event.get()); own != recorded_here.end()) {
        waits_[i] = own->second->point;
      } else if (shared != nullptr) {
        interprocess_waits_[i] = {shared, shared->recorded()};
      } else if (const auto record = wait->event->record()) {
        waits_[i] = record->point;
      }
    }
  }
}

void GraphRun::publish_events(const GraphPlan& plan) {
  for (const auto& [index, record] : records_) {
    Event& event = *std::get<EventRecordOperation>(plan.nodes[index].operation).event;
    if (event.interprocess != nullptr) interprocess_recording(index, event);
    event.captured.store(false);
    event.set_record(record);
  }
}

uint64_t GraphRun::interprocess_recording(uint32_t index, const Event& event) {
  std::lock_guard lock(mutex_);
  uint64_t& recording = interprocess_recordings_[index];
  if (recording == 0) recording = event.interprocess->begin_recording();
  return recording;
}

void GraphRun::launch() {
  begin_launch(*plan_);
  start();
}

void GraphRun::start() {
  if (plan_->nodes.empty()) {
    done_->complete(1);
    return;
  }
  std::vector<uint32_t> roots;
  for (uint32_t i = 0; i < plan_->nodes.size(); ++i) {
    if (plan_->nodes[i].predecessors == 0) roots.push_back(i);
  }
  // This thread's own root comes last, when the other branches have been started.
  for (size_t i = 1; i < roots.size(); ++i) start_branch(roots[i]);
  run_from(roots[0]);
}

void GraphRun::start_branch(uint32_t index) {
  {
    std::lock_guard lock(mutex_);
    if (branches_ >= kMaxBranches) {
      put_off_.push_back(index);
      return;
    }
    ++branches_;
  }
  post_to_worker([self = shared_from_this(), index] { self->run_from(index); });
}

bool GraphRun::next_branch(uint32_t* index) {
  std::lock_guard lock(mutex_);
  if (put_off_.empty()) {
    --branches_;
    return false;
  }
  *index = put_off_.back();
  put_off_.pop_back();
  return true;
}

void GraphRun::run_from(uint32_t index) {
  constexpr uint32_t kNone = ~uint32_t{0};
  for (;;) {
    execute(index);
    uint32_t next = kNone;
    for (const uint32_t successor : plan_->nodes[index].successors) {
      if (pending_[successor].fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
      if (next == kNone) {
        next = successor;
      } else {
        start_branch(successor);
      }
    }
    // Release: a thread that finds the run done also sees this node's effects.
    if (remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      // Releases the plan's resources first, as Stream::run() does for an operation. Other branches
      // no longer use the plan.
      plan_.reset();
      done_->complete(1);
      return;
    }
    index = next;
    if (index == kNone && !next_branch(&index)) return;
  }
}

void GraphRun::execute(uint32_t index) {
  const PlanNode& node = plan_->nodes[index];
  if (!node.enabled) return;
  if (const auto record = records_.find(index); record != records_.end()) {
    record->second->time_ns.store(now_ns(), std::memory_order_relaxed);
    record->second->point.timeline->complete(1);
    const Event& event = *std::get<EventRecordOperation>(node.operation).event;
    if (event.interprocess != nullptr) {
      event.interprocess->complete(interprocess_recording(index, event));
    }
    return;
  }
  Context& context = node.context != nullptr ? *node.context : context_;
  if (const auto wait = waits_.find(index); wait != waits_.end()) {
    wait_unless_stopping(wait->second, context);
    return;
  }
  if (const auto wait = interprocess_waits_.find(index); wait != interprocess_waits_.end()) {
    wait->second.event->wait(wait->second.target, &context);
    return;
  }
  if (node.bodies != nullptr) return run_bodies(*node.bodies, context);
  execute_operation(context, node.operation);
}

void GraphRun::run_bodies(const PlannedBodies& bodies, Context& context) {
  const auto goes_on = [&] {
    return context.sticky() == CUDA_SUCCESS && !context.stopping().load(std::memory_order_relaxed);
  };
  while (goes_on()) {
    const unsigned value = bodies.condition->value();
    // Except in a switch, the first body is for values other than 0. An `if` may have a second
    // body, for 0.
    const size_t chosen = bodies.type == CU_GRAPH_COND_TYPE_SWITCH ? value : value == 0;
    if (chosen >= bodies.plans.size()) return;
    const auto run = std::make_shared<GraphRun>(bodies.plans[chosen], context);
    run->start();
    wait_unless_stopping(run->done(), context);
    if (bodies.type != CU_GRAPH_COND_TYPE_WHILE) return;
  }
}

}  // namespace softgpu::driver
