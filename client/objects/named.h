// Objects by the ids that their workers know them by.
//
// A worker may name an object that the client created (a graph's own stream), or one of its own (a
// captured graph's nodes), whose object is made when it is first named. Threads: any.
#pragma once

#include "client/channel/target.h"
#include "client/objects/object.h"
#include "client/objects/stream.h"

namespace rcuda::client {

void remember_named(Object* object);
void forget_named(const Object& object);

// The session's object of the kind with that id; made with this identity if there is none. Null
// when no more of its kind can be made.
Object* named(wire::Kind kind, const Identity& identity);
template <typename T>
T* named(const Identity& identity) {
  return static_cast<T*>(named(T::kKind, identity));
}

// The context of a target.
Context* context_of(const Target& target);
// The target in its context's legacy default stream, unless it has a timeline already.
Target in_default_stream(const Target& target);

}  // namespace rcuda::client
