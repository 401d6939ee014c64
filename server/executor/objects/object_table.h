// ObjectTable: maps the ids of one kind of object to the driver's handles.
//
// The client mints dense ids for the objects that it creates. Objects that only the driver can name
// (the nodes of a captured graph, a kernel's function) get ids from the worker, with kWorkerMinted
// set. Ids come from the wire, so find() accepts any number. A driver may reuse a handle for
// another object, so a handle's id is that of its latest bind() or name().
// Executor thread only. Nothing blocks. Handles belong to the driver.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "common/wire/protocol.h"

namespace rcuda::server {

struct Object {
  void* handle = nullptr;
  wire::ObjectId context = 0;    // the context that was current when the object was bound
  bool watched = false;          // events: a watch waits for the event's latest record
  uint32_t parameter_bytes = 0;  // functions, kernels: least size of the parameters of a launch
  bool parameters_known = false;
  // Functions, kernels, modules: the module or library with which they end. 0: unknown.
  wire::Kind owner_kind = wire::Kind::kModule;
  wire::ObjectId owner = 0;
  wire::ObjectId launched_in = 0;  // functions, kernels: the context it was last launched in
  uint64_t key = 0;                // streams: SessionStream::key
  uint64_t last_use = 0;           // streams: the number of the latest use
  uint64_t done_use = 0;           // streams: that of the latest use whose work is known to be done
};

class ObjectTable {
 public:
  // Returns nullptr if the id names no object. The pointer is valid until the next bind() or
  // name().
  Object* find(wire::ObjectId id) {
    std::vector<Object>& side = id & wire::kWorkerMinted ? workers_ : clients_;
    const wire::ObjectId index = id & ~wire::kWorkerMinted;
    if (index == 0 || index >= side.size() || !side[index].handle) return nullptr;
    return &side[index];
  }

  // Returns false if the id is in use, may not be minted by a client, or is too far beyond the
  // earlier ids. (Ids are dense, but several threads mint them, so they may arrive out of order.)
  bool bind(wire::ObjectId id, void* handle, wire::ObjectId context);
  // Returns the handle's id. Mints an id if the handle has none. Returns 0 for a null handle, or if
  // there are too many ids.
  wire::ObjectId name(void* handle, wire::ObjectId context);
  void unbind(wire::ObjectId id);
  // Unbinds all objects that end with a module or library. The driver may reuse their handles.
  void unbind_owned(wire::Kind owner_kind, wire::ObjectId owner);
  // The handle's id; 0 if it has none.
  wire::ObjectId id_of(void* handle) const {
    const auto known = ids_.find(handle);
    return known == ids_.end() ? 0 : known->second;
  }
  size_t size() const { return ids_.size(); }
  // Unbinds the handle's id, if it has one.
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
