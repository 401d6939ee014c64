// Plans and runs: what an executable graph is, and one launch of it.
//
// A GraphPlan is a graph made flat: child graphs are spliced in between an empty entry and an empty
// exit node, edges are indices. Plans are immutable while a run uses them; updates of an executable
// graph copy a plan that is in use.
// A GraphRun executes a plan once, when its turn comes in the stream it was launched into: start()
// is called on the stream's thread, carries out one branch there, and gives further branches that
// are ready at the same time to borrowed threads, up to a limit like the one hardware has. done()
// is reached when all nodes have finished.
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

// References to a graph's user objects, not to those of its children, for as long as this lives.
class HeldUserObjects {
 public:
  explicit HeldUserObjects(const Graph& graph);
  ~HeldUserObjects();
  HeldUserObjects(const HeldUserObjects&) = delete;
  HeldUserObjects& operator=(const HeldUserObjects&) = delete;

 private:
  const std::map<std::shared_ptr<UserObject>, unsigned> counts_;
};

struct PlanNode {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  Operation operation;
  std::shared_ptr<Context> context;
  bool enabled = true;
  std::vector<uint32_t> successors;
  uint32_t predecessors = 0;
  std::shared_ptr<const HeldUserObjects> user_objects;  // of the child graph that begins here
};

struct GraphPlan {
  std::vector<PlanNode> nodes;                       // dependencies first
  std::unordered_map<uint64_t, uint32_t> by_id;      // GraphNode::id -> index
  std::vector<std::shared_ptr<GraphMemory>> memory;  // of its allocation nodes
  std::vector<CUdeviceptr> freed;                    // by its free nodes, in this graph or another
  std::shared_ptr<const HeldUserObjects> user_objects;
};

// What launches need belongs to the plan, user objects included. Null when the graph, or a child,
// has a cycle. graph_mutex() is held.
std::shared_ptr<GraphPlan> make_plan(const Graph& graph);

class GraphRun : public std::enable_shared_from_this<GraphRun> {
 public:
  // Gives each event node its recording or the point it waits for.
  GraphRun(std::shared_ptr<const GraphPlan> plan, Context& context);

  // From now on the events of `plan`, which is the run's, stand for this launch. Called once the
  // launch is in its stream's queue: whoever waits for the events must come behind it there.
  void publish_events(const GraphPlan& plan);
  void start();
  Point done() const { return {done_, 1}; }

 private:
  void start_branch(uint32_t index);
  bool next_branch(uint32_t* index);  // what start_branch() put off; false: nothing is left
  void run_from(uint32_t index);
  void execute(uint32_t index);
  // The number of this launch's recording of an event that processes share, which begins with the
  // first call for the node.
  uint64_t interprocess_recording(uint32_t index, const Event& event);

  std::shared_ptr<const GraphPlan> plan_;  // until the last node has finished
  Context& context_;                       // of the stream: for nodes without one
  const std::shared_ptr<Timeline> done_ = std::make_shared<Timeline>();
  std::vector<std::atomic<uint32_t>> pending_;  // unfinished predecessors by node
  std::atomic<uint32_t> remaining_;
  std::map<uint32_t, std::shared_ptr<EventRecord>> records_;
  std::map<uint32_t, Point> waits_;
  std::map<uint32_t, InterprocessWaitOperation> interprocess_waits_;

  std::mutex mutex_;
  unsigned branches_ = 1;  // threads at work, the stream's included
  std::vector<uint32_t> put_off_;
  std::map<uint32_t, uint64_t> interprocess_recordings_;
};

}  // namespace softgpu::driver
