// Graphs and their nodes, and the user objects that graphs hold.
//
// Threads: CUDA does not allow concurrent changes of one graph, and neither does this.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <cuda.h>

#include "client/objects/object.h"

namespace rcuda::client {

// cuUserObjectCreate's: a reference count and what to do at its end.
struct UserObject : Object {
  static constexpr wire::Kind kKind = wire::Kind::kUserObject;
  UserObject(const Identity& identity, void* its_pointer, CUhostFn its_end, unsigned count)
      : Object(kKind, identity), pointer(its_pointer), end(its_end), references(count) {}

  void* const pointer;
  const CUhostFn end;
  std::atomic<unsigned> references;
};

// References of a user object that the worker's graph holds under a number.
struct HeldObject {
  UserObject* object = nullptr;
  uint64_t number = 0;
  std::shared_ptr<std::atomic<unsigned>> count;  // shared with what happens when it lets go
};

struct Graph : Object {
  static constexpr wire::Kind kKind = wire::Kind::kGraph;
  explicit Graph(const Identity& identity) : Object(kKind, identity) {}

  std::vector<HeldObject> held;
};

// Memory that cuGraphKernelNodeGetParams and its like point into. A worker's ids of nodes are used
// again when their graph is gone, so this says nothing about the node: it is filled anew each time
// that it is asked for.
struct GraphNode : Object {
  static constexpr wire::Kind kKind = wire::Kind::kGraphNode;
  explicit GraphNode(const Identity& identity) : Object(kKind, identity) {}

  struct Answers {
    std::vector<std::byte> parameters;  // packed
    size_t parameter_bytes = 0;
    std::vector<void*> parameter_pointers;  // into these: what kernelParams or extra reads back as
    std::vector<CUmemAccessDesc> access;    // of an allocation
    std::vector<CUstreamBatchMemOpParams> operations;  // of a batch
  };
  // Made on first need: most nodes are never asked.
  Answers& answers() {
    if (!answers_) answers_ = std::make_unique<Answers>();
    return *answers_;
  }

 private:
  std::unique_ptr<Answers> answers_;
};

}  // namespace rcuda::client
