// Finds objects by their ids in the worker.
//
// A worker may name an object that the client created (the context of a kernel node), or an object
// that the worker created (a captured graph's nodes). For an object of the worker, the client makes
// its own object when the worker first names it. Threads: any.
#pragma once

#include "client/objects/object.h"
#include "client/objects/stream.h"
#include "client/session/route.h"

namespace rcuda::client {

void remember_named(Object* object);
void forget_named(const Object& object);

// Returns the session's object with this kind and id. Makes the object if the session has none.
// Returns null if no object of the kind can be made.
Object* named(wire::Kind kind, const Identity& identity);
template <typename T>
T* named(const Identity& identity) {
  return static_cast<T*>(named(T::kKind, identity));
}

// Returns the context of a route.
Context* context_of(const Route& route);
// Returns the legacy default stream of the route's context.
StreamRoute in_default_stream(const Route& route);

}  // namespace rcuda::client
