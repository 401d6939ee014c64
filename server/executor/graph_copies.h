// GraphCopies: copies inside graphs whose host side is client memory that this worker has not, or
// not as it is.
//
// The application's graph holds the one copy node that it would hold locally, and all that it asks
// of its graph is answered by the driver. Only the executable needs more: bytes of a shadow
// (host_memory.h) have to come over the Link before the copy reads them, and go back after it wrote
// them; and where the memory stands for pageable memory, the client has to fill or empty it. So
// while an executable is made, or updated, the graph is dressed: host nodes before and after each
// such copy, gone again when the driver has made its own picture of the graph. A copy of an
// executable that needs it only since its parameters were set gets it around each launch instead:
// before all of the graph, and after all of it. Functions are called on the executor thread; the
// host nodes run on the driver's threads and hold their branch of the graph while the network, or
// the client, is busy.
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
    Dressing(GraphCopies& copies, CUgraph graph);
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
    CUresult surround(CUgraph graph, CUgraphNode copy, std::shared_ptr<Steps> steps);

    GraphCopies& copies_;
    const CUgraph graph_;
    CUresult result_ = CUDA_SUCCESS;
    std::vector<Added> added_;
    std::vector<std::shared_ptr<Steps>> steps_;
    CUuserObject owner_ = nullptr;
  };

  // The executable was made from the dressed graph; or got the parameters of one like it.
  void instantiated(CUgraphExec executable, const Dressing& dressing);
  void updated(CUgraphExec executable, const Dressing& dressing);
  void forget(CUgraphExec executable) { executables_.erase(executable); }
  // The driver gave an executable's copy these parameters.
  void changed(CUgraphExec executable, CUgraphNode node, const CUDA_MEMCPY3D& copy);
  // CUDA_ERROR_NOT_SUPPORTED into a capture, if copies need something around the launch.
  CUresult launch(CUgraphExec executable, CUstream stream);

 private:
  std::shared_ptr<Steps> plan(CUgraphNode node, const CUDA_MEMCPY3D& copy);
  Steps* find(CUgraphExec executable, CUgraphNode node);

  Executor& executor_;
  std::unordered_map<CUgraphExec, std::vector<std::shared_ptr<Steps>>> executables_;
};

}  // namespace rcuda::server
