// ObjectTable: one kind's ids on one side, the driver's handles on the other.
//
// The client mints dense ids for what it creates; objects that only the driver can name (a captured
// graph's nodes, a kernel's function) get ids of the worker's own, with kWorkerMinted set. Ids come
// from the wire: find() takes any number. Handles are not unique per kind over time, so a handle's
// id is the one it was bound or named with last. One thread: the executor's. Nothing blocks.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "common/wire/protocol.h"

namespace rcuda::server {

struct Object {
  void* handle = nullptr;
  wire::ObjectId context = 0;    // current when it was bound
  bool watched = false;          // events: somebody waits for its latest record
  uint32_t parameter_bytes = 0;  // functions, kernels: what a launch must bring, once known
  bool parameters_known = false;
  // Functions, kernels: the module or library that they go with. 0: none is known.
  wire::Kind owner_kind = wire::Kind::kModule;
  wire::ObjectId owner = 0;
  wire::ObjectId launched_in = 0;  // functions, kernels: the context it was last launched in
  uint64_t key = 0;                // streams: StreamRef::key
  uint64_t last_use = 0;  // streams: commands that named it, and how far they are known to be done
  uint64_t done_use = 0;
};

class ObjectTable {
 public:
  // nullptr for an id that names nothing; the pointer is good until the next bind() or name().
  Object* find(wire::ObjectId id) {
    std::vector<Object>& side = id & wire::kWorkerMinted ? workers_ : clients_;
    const wire::ObjectId index = id & ~wire::kWorkerMinted;
    if (index == 0 || index >= side.size() || !side[index].handle) return nullptr;
    return &side[index];
  }

  // False when the id is in use, is not the client's to mint, or is so far beyond what was minted
  // before that it cannot be honest (ids are dense; several threads mint, so not strictly in
  // order).
  bool bind(wire::ObjectId id, void* handle, wire::ObjectId context);
  wire::ObjectId name(void* handle, wire::ObjectId context);
  void unbind(wire::ObjectId id);
  // What goes with a module or library: the driver may have other functions at these handles next.
  void unbind_owned(wire::Kind owner_kind, wire::ObjectId owner);
  // 0: it has no name.
  wire::ObjectId id_of(void* handle) const {
    const auto known = ids_.find(handle);
    return known == ids_.end() ? 0 : known->second;
  }
  // Whatever it is called, if it has a name.
  void unbind_handle(void* handle) {
    if (auto known = ids_.find(handle); known != ids_.end()) unbind(known->second);
  }

  template <typename Visit>
  void for_each(Visit visit) {
    for (wire::ObjectId i = 1; i < clients_.size(); ++i) {
      if (clients_[i].handle) visit(i, clients_[i]);
    }
    for (wire::ObjectId i = 1; i < workers_.size(); ++i) {
      if (workers_[i].handle) visit(i | wire::kWorkerMinted, workers_[i]);
    }
  }

 private:
  std::vector<Object> clients_, workers_;  // by id; 0 stays empty
  std::vector<wire::ObjectId> free_workers_;
  std::unordered_map<void*, wire::ObjectId> ids_;
};

}  // namespace rcuda::server
