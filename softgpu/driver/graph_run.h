// Plans and runs: the content of an executable graph, and one launch of it.
//
// A GraphPlan is a flattened graph: each child graph is inserted between an empty entry node and an
// empty exit node, and edges are indices. A plan does not change while a run uses it; an update of
// an executable graph first copies a plan that is in use.
//
// A GraphRun executes a plan once, when its turn comes in the stream of the launch. launch() is
// called on the stream's thread and runs one branch there. Other branches that are ready run on
// borrowed threads, up to a limit. done() becomes true when all nodes have finished.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <cuda.h>

#include "softgpu/driver/graph.h"
#include "softgpu/driver/timeline.h"

namespace softgpu::driver {

struct EventRecord;

// Holds references to a graph's user objects, but not to those of its children, while it exists.
class HeldUserObjects {
 public:
  explicit HeldUserObjects(const Graph& graph);
  ~HeldUserObjects();
  HeldUserObjects(const HeldUserObjects&) = delete;
  HeldUserObjects& operator=(const HeldUserObjects&) = delete;

 private:
  const std::map<std::shared_ptr<UserObject>, unsigned> counts_;
};

struct PlannedBodies;

struct PlanNode {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  Operation operation;
  std::shared_ptr<Context> context;
  bool enabled = true;
  std::shared_ptr<const PlannedBodies> bodies;  // of a conditional node
  std::vector<uint32_t> successors;
  uint32_t predecessors = 0;
  std::shared_ptr<const HeldUserObjects> user_objects;  // of the child graph that begins here
};

struct GraphPlan;

// A conditional node: its bodies are plans of their own, which run within the node.
struct PlannedBodies {
  std::shared_ptr<Condition> condition;
  CUgraphConditionalNodeType type{};
  std::vector<std::shared_ptr<const GraphPlan>> plans;
};

struct GraphPlan {
  std::vector<PlanNode> nodes;                       // dependencies first
  std::unordered_map<uint64_t, uint32_t> by_id;      // GraphNode::id -> index
  std::vector<std::shared_ptr<GraphMemory>> memory;  // of its allocation nodes
  std::vector<uint32_t> conditional;                 // indices of its conditional nodes
  std::vector<CUdeviceptr> freed;  // by its free nodes, also memory of other graphs
  std::shared_ptr<const HeldUserObjects> user_objects;
};

// The plan owns everything that launches need, user objects included. Null if the graph or a child
// has a cycle, a conditional handle has no node, or a body has a node of a type that bodies may not
// contain. The caller holds graph_mutex().
std::shared_ptr<GraphPlan> make_plan(const Graph& graph);
// The plans of a conditional node's bodies. Null if a body cannot be planned (see make_plan()).
std::shared_ptr<const PlannedBodies> plan_bodies(const ConditionalOperation& operation);

class GraphRun : public std::enable_shared_from_this<GraphRun> {
 public:
  // Gives each event node its recording, or the point that it waits for.
  GraphRun(std::shared_ptr<const GraphPlan> plan, Context& context);

  // From now on the graph's events refer to this launch. `plan`: the run's plan. Called when the
  // launch is already in its stream's queue, so that later waits for the events are queued after
  // the launch.
  void publish_events(const GraphPlan& plan);
  // Called on the stream's thread, on which it runs one branch. Starts the other branches.
  void launch();
  Point done() const { return {done_, 1}; }

 private:
  void start();
  void start_branch(uint32_t index);
  // Takes a branch that start_branch() has deferred. False if there is none: the thread is done.
  bool next_branch(uint32_t* index);
  void run_from(uint32_t index);
  void execute(uint32_t index);
  void run_bodies(const PlannedBodies& bodies, Context& context);
  // The number of this launch's recording of an interprocess event. The first call for a node
  // begins the recording.
  uint64_t interprocess_recording(uint32_t index, const Event& event);

  std::shared_ptr<const GraphPlan> plan_;  // null once the last node has finished
  Context& context_;                       // the stream's, for nodes without a context
  const std::shared_ptr<Timeline> done_ = std::make_shared<Timeline>();
  std::vector<std::atomic<uint32_t>> pending_;  // unfinished predecessors by node
  std::atomic<uint32_t> remaining_;
  std::map<uint32_t, std::shared_ptr<EventRecord>> records_;
  std::map<uint32_t, Point> waits_;
  std::map<uint32_t, InterprocessWaitOperation> interprocess_waits_;

  std::mutex mutex_;
  unsigned branches_ = 1;  // running threads, including the stream's
  std::vector<uint32_t> put_off_;
  std::map<uint32_t, uint64_t> interprocess_recordings_;
};

}  // namespace softgpu::driver
