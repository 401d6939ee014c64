// GraphKeeper: what the client's graphs need to live on, and what their nodes are called.
//
// A graph's host functions and copies name things of the client (ClientResource) and of this
// worker. They are owned by the driver's own user objects, so that they live exactly as long as
// CUDA lets graphs use them: until the graph, its clones, the graphs it is a child of, the
// executables made of any of these, and their launches under way are all gone. Changes of an
// executable's single node have no such owner; what those need is kept until the executable is
// destroyed and the device idle. Executor thread, except that owners are let go on the driver's
// threads. Nothing blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <cuda.h>

#include "common/wire/protocol.h"

namespace rcuda::server {

class Executor;

using Kept = std::shared_ptr<void>;

class GraphKeeper {
 public:
  explicit GraphKeeper(Executor& executor) : executor_(executor) {}

  // The graph that the stream is being captured into; null: it does not capture.
  CUgraph captured_into(CUstream stream) const;

  // `kept` lives as long as the graph and what is made of it. With a driver that has no user
  // objects, until the session ends. The user object, for release(); null without.
  CUuserObject retain(CUgraph graph, Kept kept);
  // The graph itself needs it no longer; what was made of it may.
  void release(CUgraph graph, CUuserObject object);
  // The same for the graph that a node belongs to.
  void retain_for(CUgraphNode node, Kept kept);
  void retain_for(CUgraphExec executable, CUgraphNode node, Kept kept);
  // The executable is about to be destroyed.
  void forget(CUgraphExec executable);

  // What the client asked to be told of by number, under which it asks for it to be released.
  CUresult retain_number(CUgraph graph, uint64_t number);
  CUresult release_number(CUgraph graph, uint64_t number);

  // What goes with a graph or a node: its nodes and children, and theirs. To be asked before it is
  // destroyed; forget() frees their ids afterwards, unless the driver refused.
  struct Names {
    std::vector<CUgraphNode> nodes;
    std::vector<CUgraph> children;
  };
  Names names_in(CUgraph graph) const;
  Names names_in(CUgraphNode node) const;
  void forget(const Names& names);

  std::vector<CUgraphNode> nodes_of(CUgraph graph) const;
  // Whether a copy may touch the address: the driver knows it, or a node of the client's graphs, or
  // of the graph that the stream is being captured into, allocates it. Before the first launch a
  // driver does not know such memory.
  bool is_known(CUdeviceptr address, CUstream stream) const;
  // Of a node that holds a graph; null otherwise.
  CUgraph child_of(CUgraphNode node) const;

 private:
  CUgraph graph_of(CUgraphNode node);
  void collect(CUgraph graph, Names* names) const;
  void collect(CUgraphNode node, Names* names) const;

  Executor& executor_;
  std::vector<Kept> for_session_;
  std::unordered_map<CUgraphExec, std::unordered_map<CUgraphNode, Kept>> executables_;
  std::vector<Kept> waiting_;  // for the device to be idle, when something captures
  // By the client's number; erased when the last reference has gone, on a driver's thread.
  struct Numbers {
    std::mutex mutex;
    std::unordered_map<uint64_t, CUuserObject> objects;
  };
  std::shared_ptr<Numbers> numbers_ = std::make_shared<Numbers>();
};

}  // namespace rcuda::server
