// Executable graphs and their handles.
//
// A kernel may launch a graph that was instantiated with CU_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH.
// It gets the handle as a parameter, in a struct, or in memory, and the GPU knows only the worker's
// driver's handle. So the application gets that handle for such a graph, and no place that a handle
// may be written to has to be searched.
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

  // The handle that the application has.
  CUgraphExec handle() const;
  // Makes the worker's handle of the graph the application's. Returns false if it is null, equals
  // the handle of another graph, or may equal one that the client will make.
  bool use_worker_handle(CUgraphExec handle);

 private:
  CUgraphExec worker_handle_ = nullptr;
};

// Returns the live graph with this handle, or null.
template <>
GraphExec* find<GraphExec>(const void* handle);

}  // namespace rcuda::client
