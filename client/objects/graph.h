// Graphs and their nodes, and the user objects that graphs hold.
//
// Threads: any, but no concurrent changes of one graph, which CUDA forbids as well.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <cuda.h>

#include "client/objects/object.h"

namespace rcuda::client {

// A user object of cuUserObjectCreate: a reference count, and a function that runs when the count
// reaches 0.
struct UserObject : Object {
  static constexpr wire::Kind kKind = wire::Kind::kUserObject;
  UserObject(const Identity& identity, void* its_pointer, CUhostFn its_end, unsigned count)
      : Object(kKind, identity),
        pointer(its_pointer),
        end(its_end),
        references(count),
        own(count) {}

  void* const pointer;
  const CUhostFn end;
  std::atomic<unsigned> references;  // held by the application and by graphs
  std::atomic<unsigned> own;         // held by the application
};

// References to a user object that a graph holds. A clone has its own references. The worker knows
// the references of a graph and its clones by one number, the id of the callback that releases
// them.
struct HeldObject {
  UserObject* object = nullptr;
  uint64_t number = 0;
  unsigned count = 0;  // references of this graph
  // The references of all graphs with this number. Shared with the callback, which releases them.
  std::shared_ptr<std::atomic<unsigned>> of_all;
};

struct Graph : Object {
  static constexpr wire::Kind kKind = wire::Kind::kGraph;
  explicit Graph(const Identity& identity) : Object(kKind, identity) {}

  std::vector<HeldObject> held;
};

// A graph node. It owns the memory that the results of cuGraphKernelNodeGetParams and similar calls
// point to. The worker reuses a node's id after its graph is destroyed, so the contents may belong
// to an earlier node; each call fills them again.
struct GraphNode : Object {
  static constexpr wire::Kind kKind = wire::Kind::kGraphNode;
  explicit GraphNode(const Identity& identity) : Object(kKind, identity) {}

  struct Answers {
    std::vector<std::byte> parameters;  // packed
    size_t parameter_bytes = 0;
    // pointers into `parameters`, returned as kernelParams or extra
    std::vector<void*> parameter_pointers;
    std::vector<CUmemAccessDesc> access;               // of an allocation node
    std::vector<CUstreamBatchMemOpParams> operations;  // of a batch of memory operations
    std::vector<CUgraph> bodies;                       // of a conditional node
  };
  // Created on first use: most nodes never need it.
  Answers& answers() {
    if (!answers_) answers_ = std::make_unique<Answers>();
    return *answers_;
  }

 private:
  std::unique_ptr<Answers> answers_;
};

}  // namespace rcuda::client
