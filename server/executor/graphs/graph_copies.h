// GraphCopies: copies in graphs whose host side is a shadow, or stands for pageable memory of the
// client.
//
// The application's graph has the one copy node that it would have locally, and the driver answers
// all questions about it. Only the executable needs more. The bytes of a shadow (host_memory.h)
// have to come over the Link before the copy reads them, or go back after the copy wrote them. For
// memory that stands for pageable memory, the client has to fill it before the copy, or empty it
// afterwards.
// So the graph is dressed while an executable is made or updated: it gets host nodes before and
// after each such copy. They are removed when the driver has its own picture of the graph. A graph
// that updates an executable is dressed like the one that the executable was made from, so that
// both have the same nodes. A copy may need more only since the executable was updated or its
// parameters were set. It gets that around each launch: before the whole graph, and after it.
// Threads: all functions on the executor thread; host nodes on the driver's threads. Blocking: host
// nodes hold their branch of the graph while the network or the client is busy. Errors: those of
// the driver.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "server/executor/graphs/graph_keeper.h"
#include "server/executor/graphs/host_callbacks.h"
#include "server/executor/memory/host_memory.h"
#include "server/executor/memory/mirrors.h"
#include "server/executor/memory/shadow_copy.h"

namespace rcuda::server {

class GraphCopies {
 public:
  struct Steps;  // around one copy

  // What the two sides of a copy may need done. All outlive the graphs' work.
  struct Parts {
    const HostMemory& host_memory;
    const Mirrors& mirrors;
    ShadowCopies& shadow_copies;
    HostCallbacks& host_callbacks;
  };
  GraphCopies(const api::DriverTable& driver, GraphKeeper& graph_keeper, const Parts& parts)
      : driver_(driver), graph_keeper_(graph_keeper), parts_(parts) {}
  ~GraphCopies();

  class Dressing {
   public:
    // `like`: the executable to be updated. `child`: its node that holds a graph, if only that
    // graph is to be updated.
    explicit Dressing(GraphCopies& copies, CUgraph graph, CUgraphExec like = nullptr,
                      CUgraphNode child = nullptr);
    ~Dressing();
    Dressing(const Dressing&) = delete;
    Dressing& operator=(const Dressing&) = delete;

    CUresult result() const { return result_; }
    // For a node that the driver reports: the copy, if the node is one of those around a copy.
    CUgraphNode named(CUgraphNode node) const;

   private:
    friend class GraphCopies;
    struct Added {
      CUgraphNode node, copy;
    };
    CUresult dress(CUgraph graph);
    CUresult dress(CUgraph graph, CUgraphNode copy);
    CUresult surround(CUgraph graph, CUgraphNode copy, Steps& steps, bool before, bool after);

    GraphCopies& copies_;
    const CUgraph graph_;
    const CUgraphExec like_;
    size_t first_ = 0;  // the first of the executable's copies that is in `graph_`
    CUresult result_ = CUDA_SUCCESS;
    size_t dressed_ = 0;              // how many of nodes_
    std::vector<CUgraphNode> nodes_;  // its copies, in the order in which they were added
    std::vector<Added> added_;
    std::vector<std::shared_ptr<Steps>> steps_;
    CUuserObject owner_ = nullptr;
  };

  // The executable was made from the dressed graph, or was updated by it.
  void instantiated(CUgraphExec executable, const Dressing& dressing);
  void updated(CUgraphExec executable, const Dressing& dressing);
  void forget(CUgraphExec executable) { executables_.erase(executable); }
  // The driver gave an executable's copy these parameters.
  void changed(CUgraphExec executable, CUgraphNode node, const CUDA_MEMCPY3D& copy);
  // CUDA_ERROR_NOT_SUPPORTED into a capture, if copies need something around the launch.
  CUresult launch(CUgraphExec executable, CUstream stream);

 private:
  struct Executable {
    std::vector<CUgraphNode>
        copies;  // of the graph it was made from, as its application names them
    std::vector<std::shared_ptr<Steps>> steps;
  };

  std::shared_ptr<Steps> plan(CUgraphNode node, const CUDA_MEMCPY3D& copy);
  // Copies of the graph and of those in it, in the order in which they were added.
  void list_copies(CUgraph graph, std::vector<CUgraphNode>* nodes) const;
  Steps* find(CUgraphExec executable, CUgraphNode node);
  const Steps* find(CUgraphExec executable, size_t position) const;

  const api::DriverTable& driver_;
  GraphKeeper& graph_keeper_;
  const Parts parts_;
  std::unordered_map<CUgraphExec, Executable> executables_;
};

}  // namespace rcuda::server
