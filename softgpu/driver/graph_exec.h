// GraphExec: an executable graph (CUgraphExec).
//
// A GraphExec holds a plan (graph_run.h): launches run it, parameter setters change it. The
// GraphExec also holds a copy of the graph from which it was made, for the comparison in
// cuGraphExecUpdate. Launches of one executable run one after another, even in different streams. A
// plan that a launch still uses is copied before it is changed. Any thread; one mutex per
// executable, taken after graph_mutex() if both are needed. Only launch() blocks: it waits while
// the stream's queue is full, before it takes the mutex.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include <cuda.h>

#include "softgpu/driver/graph.h"
#include "softgpu/driver/graph_node_params.h"
#include "softgpu/driver/graph_run.h"
#include "softgpu/driver/timeline.h"

namespace softgpu::driver {

class Stream;

class GraphExec {
 public:
  // CUDA_ERROR_INVALID_VALUE for a graph with a cycle; _NOT_SUPPORTED if the graph has memory nodes
  // and an executable of it with memory nodes exists. The caller must not hold graph_mutex().
  // Inserts into the handle table.
  static CUresult instantiate(const std::shared_ptr<Graph>& graph, uint64_t flags,
                              std::shared_ptr<GraphExec>* exec);
  static std::shared_ptr<GraphExec> from_handle(CUgraphExec handle);
  GraphExec(std::shared_ptr<GraphPlan> plan, std::shared_ptr<Graph> source,
            std::shared_ptr<Graph> shape, uint64_t flags);
  ~GraphExec();
  GraphExec(const GraphExec&) = delete;
  GraphExec& operator=(const GraphExec&) = delete;

  CUgraphExec handle() { return reinterpret_cast<CUgraphExec>(this); }
  uint64_t flags() const { return flags_; }

  // CUDA_ERROR_INVALID_VALUE if memory allocated by the last launch has not been freed and the
  // flags lack CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH.
  CUresult launch(Stream& stream);
  CUresult update(const Graph& graph, CUgraphExecUpdateResultInfo* info);
  // `node` is a node of the graph that was instantiated. The new parameters must be of the node's
  // type.
  CUresult set_params(const GraphNode& node, NodeContent content);
  CUresult set_child_params(const GraphNode& node, const Graph& child);
  CUresult set_enabled(const GraphNode& node, bool enabled);
  CUresult enabled(const GraphNode& node, bool* enabled);

 private:
  struct Change {
    uint32_t index;
    const GraphNode* node;
    std::shared_ptr<const PlannedBodies> bodies;  // of a conditional node
  };
  using Changes = std::vector<Change>;
  GraphPlan& changeable_plan();
  const uint32_t* index_of(uint64_t node_id) const;
  CUgraphExecUpdateResult match(const Graph& mine, const Graph& theirs, Changes* changes,
                                CUgraphExecUpdateResultInfo* info) const;
  void apply(const Changes& changes);

  const uint64_t flags_;
  const std::weak_ptr<Graph> source_;
  const std::shared_ptr<Graph> shape_;
  std::mutex mutex_;
  std::shared_ptr<GraphPlan> plan_;
  Point last_launch_;
};

}  // namespace softgpu::driver
