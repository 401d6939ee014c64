// GraphCopies: copies inside graphs whose host side is client memory that this worker has not, or
// not as it is.
//
// The application's graph holds the one copy node that it would hold locally, and all that it asks
// of its graph is answered by the driver. Only the executable needs more: bytes of a shadow
// (host_memory.h) have to come over the Link before the copy reads them, and go back after it wrote
// them; and where the memory stands for pageable memory, the client has to fill or empty it. So
// while an executable is made, or updated, the graph is dressed: host nodes before and after each
// such copy, gone again when the driver has made its own picture of the graph. A graph that updates
// an executable is dressed as the one was that the executable was made from, so that both have the
// same nodes. A copy of an executable that needs more only since it was updated, or its parameters
// were set, gets it around each launch instead: before all of the graph, and after all of it.
// Functions are called on the executor thread; the host nodes run on the driver's threads and hold
// their branch of the graph while the network, or the client, is busy.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include <cuda.h>

namespace rcuda::server {

class Executor;

class GraphCopies {
 public:
  struct Steps;  // around one copy

  explicit GraphCopies(Executor& executor) : executor_(executor) {}
  ~GraphCopies();

  class Dressing {
   public:
    // `like`: the executable that is to be updated; `child`: its node that holds a graph, when only
    // that is.
    explicit Dressing(GraphCopies& copies, CUgraph graph, CUgraphExec like = nullptr,
                      CUgraphNode child = nullptr);
    ~Dressing();
    Dressing(const Dressing&) = delete;
    Dressing& operator=(const Dressing&) = delete;

    CUresult result() const { return result_; }
    // A node that the driver complains of: the copy, if it was one of those around it.
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
    size_t first_ = 0;  // of the executable's copies, that `graph_` is about
    CUresult result_ = CUDA_SUCCESS;
    size_t dressed_ = 0;              // of nodes_
    std::vector<CUgraphNode> nodes_;  // its copies, in the order in which they were added
    std::vector<Added> added_;
    std::vector<std::shared_ptr<Steps>> steps_;
    CUuserObject owner_ = nullptr;
  };

  // The executable was made from the dressed graph; or got the parameters of one like it, whose
  // dressing knew of it.
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

  Executor& executor_;
  std::unordered_map<CUgraphExec, Executable> executables_;
};

}  // namespace rcuda::server
