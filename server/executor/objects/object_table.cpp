#include "server/executor/objects/object_table.h"

namespace rcuda::server {
namespace {

constexpr wire::ObjectId kMaxGap = 1u << 16;

}  // namespace

bool ObjectTable::bind(wire::ObjectId id, void* handle, wire::ObjectId context) {
  if (id == 0 || id >= wire::kMaxObjectId || !handle) return false;
  if (id >= clients_.size()) {
    if (id > clients_.size() + kMaxGap) return false;
    clients_.resize(id + 1);
  }
  Object& object = clients_[id];
  if (object.handle) return false;
  object = Object{};
  object.handle = handle;
  object.context = context;
  ids_[handle] = id;
  return true;
}

wire::ObjectId ObjectTable::name(void* handle, wire::ObjectId context) {
  if (!handle) return 0;
  if (auto known = ids_.find(handle); known != ids_.end()) return known->second;
  if (workers_.empty()) workers_.resize(1);
  wire::ObjectId index;
  if (!free_workers_.empty()) {
    index = free_workers_.back();
    free_workers_.pop_back();
  } else {
    if (workers_.size() >= wire::kMaxObjectId) return 0;
    index = static_cast<wire::ObjectId>(workers_.size());
    workers_.emplace_back();
  }
  Object& object = workers_[index];
  object = Object{};
  object.handle = handle;
  object.context = context;
  const wire::ObjectId id = index | wire::kWorkerMinted;
  ids_[handle] = id;
  return id;
}

void ObjectTable::unbind(wire::ObjectId id) {
  Object* object = find(id);
  if (!object) return;
  if (auto known = ids_.find(object->handle); known != ids_.end() && known->second == id) {
    ids_.erase(known);
  }
  *object = Object{};
  if (id & wire::kWorkerMinted) free_workers_.push_back(id & ~wire::kWorkerMinted);
}

void ObjectTable::unbind_owned(wire::Kind owner_kind, wire::ObjectId owner) {
  if (owner == 0) return;
  for_each([&](wire::ObjectId id, const Object& object) {
    if (object.owner == owner && object.owner_kind == owner_kind) unbind(id);
  });
}

}  // namespace rcuda::server
