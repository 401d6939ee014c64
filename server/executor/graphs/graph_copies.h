// GraphCopies: the work that copies in graphs need if their host memory is a shadow (host_memory.h)
// or a stand-in for pageable memory of the client (client/copy/stand_in.h).
//
// The application's graph has only the copy node that it would have locally, and the driver answers
// all queries about it. The executable needs more. The bytes of a shadow must arrive over the Link
// before the copy reads them, or go back after the copy has written them. The client must fill a
// stand-in before the copy reads it, or copy its bytes out after the copy has written them.
//
// So the graph is dressed while an executable is made or updated: it gets a host node before or
// after each such copy. The host nodes are removed again when the driver has made or updated the
// executable. A graph that updates an executable is dressed like the graph from which the
// executable was made, because both must have the same nodes. If a copy needs this work only after
// an update of the executable, or after a change of the copy node's parameters, the work runs
// around each launch instead: before or after the whole graph.
//
// Threads: all functions on the executor thread; host nodes on the driver's threads. Blocking: host
// nodes block their branch of the graph while the network or the client is busy. Errors: those of
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
#include "server/executor/host_memory/host_memory.h"
#include "server/executor/host_memory/transfers.h"
#include "server/executor/mirrors/mirrors.h"

namespace rcuda::server {

class GraphCopies {
 public:
  struct Steps;  // the work around one copy

  // The components that do the work for the two sides of a copy. All outlive the graphs' work.
  struct Parts {
    const HostMemory& host_memory;
    const Mirrors& mirrors;
    Transfers& transfers;
    HostCallbacks& host_callbacks;
  };
  // `counts`: whether launch_bytes() is used.
  GraphCopies(const api::DriverTable& driver, GraphKeeper& graph_keeper, const Parts& parts,
              bool counts)
      : driver_(driver), graph_keeper_(graph_keeper), parts_(parts), counts_(counts) {}
  ~GraphCopies();

  // Adds the host nodes to a graph. Exists while the driver makes an executable of the graph, or
  // updates one from it. The destructor removes the host nodes.
  class Dressing {
   public:
    // `like`: the executable that the graph will update; null: a new one is made. `child`: if only
    // a child graph of the executable is updated, the node that contains it.
    explicit Dressing(GraphCopies& copies, CUgraph graph, CUgraphExec like = nullptr,
                      CUgraphNode child = nullptr);
    ~Dressing();
    Dressing(const Dressing&) = delete;
    Dressing& operator=(const Dressing&) = delete;

    CUresult result() const { return result_; }
    // Translates a node that the driver reports: returns the copy if the node was added around a
    // copy, otherwise the node itself.
    CUgraphNode named(CUgraphNode node) const;

   private:
    friend class GraphCopies;
    struct Added {
      CUgraphNode node, copy;
    };
    CUresult dress(CUgraph graph, bool in_body);
    CUresult dress(CUgraph graph, CUgraphNode copy, bool in_body);
    CUresult dress_in_body(const CUDA_MEMCPY3D& copy, std::shared_ptr<Steps> steps);
    CUresult add_host_node(CUgraph graph, CUgraphNode copy, Steps& steps, bool after);

    GraphCopies& copies_;
    const CUgraph graph_;
    const CUgraphExec like_;
    size_t first_ = 0;  // position of graph_'s first copy among the executable's copies
    CUresult result_ = CUDA_SUCCESS;
    size_t dressed_ = 0;              // number of nodes_ visited so far
    std::vector<CUgraphNode> nodes_;  // copies in graph_, in the order in which they were added
    std::vector<Added> added_;
    std::vector<std::shared_ptr<Steps>> steps_;
    CUuserObject owner_ = nullptr;
  };

  // To be called after the executable was made from the dressed graph, or updated by it.
  void instantiated(CUgraphExec executable, const Dressing& dressing);
  void updated(CUgraphExec executable, const Dressing& dressing);
  void forget(CUgraphExec executable) { executables_.erase(executable); }
  // To be called after the driver has set new parameters for a copy node of the executable.
  void changed(CUgraphExec executable, CUgraphNode node, const CUDA_MEMCPY3D& copy);
  // CUDA_ERROR_NOT_SUPPORTED if the stream is captured and copies need work around the launch.
  CUresult launch(CUgraphExec executable, CUstream stream);
  // The bytes that a launch copies between the client and the devices.
  uint64_t launch_bytes(CUgraphExec executable) const;

 private:
  struct Executable {
    // The copies of the graph from which the executable was made. The application names the
    // executable's copies by these nodes.
    std::vector<CUgraphNode> copies;
    std::vector<std::shared_ptr<Steps>> steps;
    std::vector<uint64_t> bytes;  // of each copy, between client and device; empty: not counted
  };

  // Records the bytes of each copy in `nodes`. nodes[0] is copy number `first` of the executable.
  void count(const std::vector<CUgraphNode>& nodes, size_t first, Executable* executable) const;
  uint64_t clients_bytes(const CUDA_MEMCPY3D& copy) const;
  std::shared_ptr<Steps> plan(CUgraphNode node, const CUDA_MEMCPY3D& copy);
  // Appends the copy nodes of the graph, of its child graphs and of the bodies of its conditional
  // nodes, in the order in which the nodes were added.
  void list_copies(CUgraph graph, std::vector<CUgraphNode>* nodes) const;
  template <typename Matches>
  Steps* find(CUgraphExec executable, Matches matches) const;

  const api::DriverTable& driver_;
  GraphKeeper& graph_keeper_;
  const Parts parts_;
  const bool counts_;
  std::unordered_map<CUgraphExec, Executable> executables_;
};

}  // namespace rcuda::server
