#include "client/objects/named.h"

#include <cstddef>
#include <unordered_map>

#include "client/objects/kinds.h"
#include "client/session/session.h"
#include "common/base/mutex.h"

namespace rcuda::client {
namespace {

struct Name {
  uint64_t session;
  wire::Kind kind;
  wire::ObjectId id;
  bool operator==(const Name&) const = default;
};

struct HashName {
  size_t operator()(const Name& name) const {
    const uint64_t of_session = uint64_t{static_cast<uint32_t>(name.kind)} << 32 | name.id;
    return std::hash<uint64_t>()(of_session ^ name.session << 40);
  }
};

Name name_of(wire::Kind kind, const Identity& identity) {
  return {identity.session->serial(), kind, identity.id};
}

// Guards objects(). No thread waits for the worker while it holds this mutex.
Mutex mutex;
std::unordered_map<Name, Object*, HashName>& objects() RCUDA_REQUIRES(mutex) {
  static auto* instance = new std::unordered_map<Name, Object*, HashName>;
  return *instance;
}

}  // namespace

void remember_named(Object* object) {
  MutexLock lock(mutex);
  objects()[name_of(object->kind, *object)] = object;
}

void forget_named(const Object& object) {
  if (!object.session) return;
  MutexLock lock(mutex);
  objects().erase(name_of(object.kind, object));
}

Object* named(wire::Kind kind, const Identity& identity) {
  MutexLock lock(mutex);
  const Name name = name_of(kind, identity);
  if (const auto found = objects().find(name); found != objects().end()) {
    Object* known = found->second;
    // The worker reuses the ids of graphs and their nodes. `known` may belong to an earlier object
    // with this id, whose context may be destroyed. So `known` gets the context of the new object.
    const bool is_reused = kind == wire::Kind::kGraphNode || kind == wire::Kind::kGraph;
    if (is_reused && (identity.id & wire::kWorkerMinted) && known->context != identity.context) {
      known->context = identity.context;
      known->device = identity.device;
    }
    return known;
  }
  Object* object = create_object(kind, identity);
  if (object) objects().emplace(name, object);
  return object;
}

Context* context_of(const Route& route) {
  return named<Context>({route.context, route.context, route.session, route.device});
}

StreamRoute in_default_stream(const Route& route) {
  Timeline* const timeline = context_of(route)->timeline.get();
  return {{route.session, route.context, route.device, timeline}, 0, nullptr};
}

}  // namespace rcuda::client
