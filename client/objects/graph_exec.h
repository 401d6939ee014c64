// Executable graphs and their handles.
//
// A kernel may launch a graph that was instantiated with CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH.
// The kernel gets the graph's handle as a parameter, in a struct, or in memory. The GPU knows only
// the handle of the worker's driver. So the application gets that handle for such a graph.
// Otherwise the client would have to search all memory where the application may store a handle.
//
// Threads: any.
#pragma once

#include <cuda.h>

#include "client/objects/arena.h"
#include "client/objects/object.h"

namespace rcuda::client {

struct GraphExec : Object {
  static constexpr wire::Kind kKind = wire::Kind::kGraphExec;
  explicit GraphExec(const Identity& identity) : Object(kKind, identity) {}
  ~GraphExec();

  // Returns the handle that the application has.
  CUgraphExec handle() const;
  // From now on, the application's handle is `handle`, the handle of the worker's driver. Returns
  // false if `handle` is null, equals the handle of another graph, or may equal a handle that the
  // client will make.
  bool use_worker_handle(CUgraphExec handle);

 private:
  CUgraphExec worker_handle_ = nullptr;
};

// Returns the live graph with this handle, or null.
template <>
GraphExec* find<GraphExec>(const void* handle);

}  // namespace rcuda::client
