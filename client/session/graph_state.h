// What the client keeps of graphs: the parameters of nodes it made, so that they can be read back, and
// the user objects that graphs hold.
//
// Object::extra of a graph and of an executable graph is a GraphState, of a node a NodeState; both are
// made on first need. An executable shares its graph's user objects: they are released when the last
// of them is destroyed. Threads: CUDA does not allow concurrent changes of one graph, and neither
// does this.
#pragma once

#include <cuda.h>

#include <memory>
#include <vector>

#include "client/session/objects.h"

namespace rcuda::client {

// cuUserObjectCreate's object: a reference count and what to do at its end.
struct UserObject {
  void* pointer = nullptr;
  CUhostFn destroy = nullptr;
  std::atomic<unsigned> references{0};
};

// References that one graph holds; given back when the last GraphState that shares them goes.
struct HeldObjects {
  struct Held {
    Object* object;
    unsigned count;
  };
  std::vector<Held> held;
  ~HeldObjects();
};

struct GraphState {
  std::shared_ptr<HeldObjects> objects = std::make_shared<HeldObjects>();
};

struct NodeState {
  CUDA_KERNEL_NODE_PARAMS kernel{};
  std::vector<std::byte> parameters;        // packed
  std::vector<void*> parameter_pointers;    // into `parameters`: what kernelParams reads back as
  CUDA_HOST_NODE_PARAMS host{};
};

GraphState* graph_state(Object* graph);  // made if there is none
NodeState* node_state(Object* node);

// False when `object` holds fewer.
bool release_user_object(Object* object, unsigned count);

}  // namespace rcuda::client
