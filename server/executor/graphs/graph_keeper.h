// GraphKeeper: keeps the resources that the client's graphs use, and frees the ids of destroyed
// nodes.
//
// A graph's host functions and copies use resources of the client (ClientResource) and of this
// worker. User objects of the driver own them. So they live as long as CUDA lets graphs use them:
// until the graph, its clones, the graphs that contain it, the executables made from any of these,
// and their launches have all ended. If a single node of an executable is changed, no user object
// can own the node's new resource. The resource is then kept until the node is changed again or the
// executable is destroyed, and after that until all contexts are idle.
// Threads: all functions on the executor thread; user objects are destroyed on the driver's
// threads. Nothing blocks. Errors: those of the driver.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/base/mutex.h"
#include "common/wire/protocol.h"
#include "server/executor/answers/client_resources.h"
#include "server/executor/objects/objects.h"
#include "server/executor/streams/idle.h"

namespace rcuda::server {

using Resource = std::shared_ptr<void>;

class GraphKeeper {
 public:
  // All outlive this object.
  GraphKeeper(const api::DriverTable& driver, SessionObjects& objects, ClientResources& resources,
              IdleCheck& idle)
      : driver_(driver), objects_(objects), resources_(resources), idle_(idle) {}

  // Keeps `resource` until the graph and everything made from it have ended. Returns the user
  // object that owns `resource`, for release(). If the driver makes no user object, keeps
  // `resource` until the session ends and returns null.
  CUuserObject retain(CUgraph graph, Resource resource);
  // Drops the graph's reference. Everything made from the graph keeps its own.
  void release(CUgraph graph, CUuserObject object);
  // As retain(): for the graph that contains the node, or for a changed node of an executable.
  void retain_for(CUgraphNode node, Resource resource);
  void retain_for(CUgraphExec executable, CUgraphNode node, Resource resource);
  // To be called before the executable is destroyed.
  void forget(CUgraphExec executable);

  // Retain and release a user object of the client, which the client numbers.
  // CUDA_ERROR_INVALID_VALUE if a number to retain is in use, or a number to release is unknown;
  // CUDA_ERROR_OUT_OF_MEMORY if the driver makes no user object.
  CUresult retain_number(CUgraph graph, uint64_t number);
  CUresult release_number(CUgraph graph, uint64_t number);

  // The nodes, child graphs and bodies, at all levels, that are destroyed with a graph or a node.
  // Call names_in() before the destruction. If the driver accepts the destruction, call forget(),
  // which frees the ids.
  struct Names {
    std::vector<CUgraphNode> nodes;
    std::vector<CUgraph> children;
  };
  Names names_in(CUgraph graph) const;
  Names names_in(CUgraphNode node) const;
  void forget(const Names& names);

  std::vector<CUgraphNode> nodes_of(CUgraph graph) const;
  // Whether a copy may touch the address: the driver knows it, or a node of a graph allocates it.
  // The graph may be any graph of the client, or the one that the stream is captured into. (A
  // driver does not know the memory of a graph before its first launch.)
  bool is_known(CUdeviceptr address, CUstream stream) const;
  // The node's child graph; null if it has none.
  CUgraph child_of(CUgraphNode node) const;
  // Records the bodies of a conditional node that the client has added. The driver reports them
  // only when the node is added.
  void note_bodies(CUgraphNode node, std::vector<CUgraph> bodies);
  std::vector<CUgraph> bodies_of(CUgraphNode node) const;

 private:
  CUgraph graph_of(CUgraphNode node);
  void drop_waiting();
  void collect(CUgraph graph, Names* names) const;
  void collect(CUgraphNode node, Names* names) const;

  const api::DriverTable& driver_;
  SessionObjects& objects_;
  ClientResources& resources_;
  IdleCheck& idle_;
  std::unordered_map<CUgraphNode, std::vector<CUgraph>> bodies_;
  std::vector<Resource> for_session_;
  std::unordered_map<CUgraphExec, std::unordered_map<CUgraphNode, Resource>> executables_;
  // Resources to drop when all contexts are idle. During a capture a context cannot be queried, so
  // the resources stay here until a later call.
  std::vector<Resource> waiting_;
  // User objects by the client's number. A thread of the driver erases an entry when the last
  // reference to the user object is released.
  struct Numbers {
    Mutex mutex;
    std::unordered_map<uint64_t, CUuserObject> objects RCUDA_GUARDED_BY(mutex);
  };
  std::shared_ptr<Numbers> numbers_ = std::make_shared<Numbers>();
};

}  // namespace rcuda::server
