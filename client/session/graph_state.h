// What the client keeps of graphs: which user objects each holds, and for nodes the memory that
// cuGraphKernelNodeGetParams and its like point into.
//
// Object::extra of a graph is a GraphState, of a node a NodeState, both made on first need. A
// worker's ids of nodes are used again when their graph is gone, so a node's state says nothing
// about the node: it is filled anew each time it is asked for. Threads: CUDA does not allow
// concurrent changes of one graph, and neither does this.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include <cuda.h>

#include "client/session/objects.h"

namespace rcuda::client {

// cuUserObjectCreate's object: a reference count and what to do at its end.
struct UserObject {
  void* pointer = nullptr;
  CUhostFn destroy = nullptr;
  std::atomic<unsigned> references{0};
};

// References of a user object that the worker's graph holds under a number.
struct HeldObject {
  Object* object = nullptr;
  uint64_t number = 0;
  std::shared_ptr<std::atomic<unsigned>> count;  // shared with what happens when it lets go
};

struct GraphState {
  std::vector<HeldObject> held;
};

struct NodeState {
  std::vector<std::byte> parameters;  // packed
  size_t parameter_bytes = 0;
  std::vector<void*> parameter_pointers;  // into these: what kernelParams or extra reads back as
  std::vector<CUmemAccessDesc> access;    // of an allocation
  std::vector<CUstreamBatchMemOpParams> operations;  // of a batch
};

GraphState* graph_state(Object* graph);  // made if there is none
NodeState* node_state(Object* node);

}  // namespace rcuda::client
