// GraphKeeper: keeps what the client's graphs use, and gives back the ids of their nodes.
//
// A graph's host functions and copies use things of the client (ClientResource) and of this worker.
// The driver's user objects own them, so that they live as long as CUDA lets graphs use them: until
// the graph, its clones, the graphs it is a child of, the executables made from any of these, and
// their launches are all gone. A change of a single node of an executable has no such owner. What
// it needs is kept until the executable is destroyed and the device is idle.
// Threads: all functions on the executor thread; owners end on the driver's threads. Nothing
// blocks. Errors: those of the driver.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/wire/protocol.h"
#include "server/executor/answers/client_resources.h"
#include "server/executor/objects/objects.h"
#include "server/executor/streams/idle.h"

namespace rcuda::server {

using Kept = std::shared_ptr<void>;

class GraphKeeper {
 public:
  // All outlive this object.
  GraphKeeper(const api::DriverTable& driver, SessionObjects& objects, ClientResources& resources,
              IdleCheck& idle)
      : driver_(driver), objects_(objects), resources_(resources), idle_(idle) {}

  // Keeps `kept` as long as the graph and what is made from it; until the session ends if the
  // driver has no user objects. Returns the user object, for release(), or null.
  CUuserObject retain(CUgraph graph, Kept kept);
  // The graph needs it no longer. What was made from the graph may.
  void release(CUgraph graph, CUuserObject object);
  // The same for the graph that a node belongs to.
  void retain_for(CUgraphNode node, Kept kept);
  void retain_for(CUgraphExec executable, CUgraphNode node, Kept kept);
  // The executable is about to be destroyed.
  void forget(CUgraphExec executable);

  // For user objects of the client, by the client's number.
  CUresult retain_number(CUgraph graph, uint64_t number);
  CUresult release_number(CUgraph graph, uint64_t number);

  // What ends with a graph or a node: its nodes and child graphs, and theirs. To be asked before
  // the graph or node is destroyed. Afterwards forget() frees their ids, unless the driver refused.
  struct Names {
    std::vector<CUgraphNode> nodes;
    std::vector<CUgraph> children;
  };
  Names names_in(CUgraph graph) const;
  Names names_in(CUgraphNode node) const;
  void forget(const Names& names);

  std::vector<CUgraphNode> nodes_of(CUgraph graph) const;
  // Whether a copy may touch the address: the driver knows it, or a node of a graph allocates it,
  // which may be a graph of the client's or the one that the stream is captured into. A driver does
  // not know the memory of a graph before the first launch.
  bool is_known(CUdeviceptr address, CUstream stream) const;
  // The graph that a node holds; null if it holds none.
  CUgraph child_of(CUgraphNode node) const;

 private:
  CUgraph graph_of(CUgraphNode node);
  void collect(CUgraph graph, Names* names) const;
  void collect(CUgraphNode node, Names* names) const;

  const api::DriverTable& driver_;
  SessionObjects& objects_;
  ClientResources& resources_;
  IdleCheck& idle_;
  std::vector<Kept> for_session_;
  std::unordered_map<CUgraphExec, std::unordered_map<CUgraphNode, Kept>> executables_;
  std::vector<Kept> waiting_;  // until the device is idle, which cannot be told during a capture
  // By the client's number. Erased on a driver's thread when the last reference is gone.
  struct Numbers {
    std::mutex mutex;
    std::unordered_map<uint64_t, CUuserObject> objects;
  };
  std::shared_ptr<Numbers> numbers_ = std::make_shared<Numbers>();
};

}  // namespace rcuda::server
