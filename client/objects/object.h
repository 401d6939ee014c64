// What every handle that the application holds has in common: streams, events, modules, graphs, ...
//
// Each kind is a type of its own (stream.h, code.h, ...) that derives from Object; the handle is
// the object's address. arena.h makes, finds and retires them.
#pragma once

#include <cstdint>

#include "common/wire/protocol.h"

namespace rcuda::client {

class Session;

// What an object is on its worker, and where it belongs. Libraries, kernels and user objects are on
// several workers or on none: they have no session and no id.
struct Identity {
  wire::ObjectId id = 0;
  wire::ObjectId context = 0;  // in which it was created; its own id for contexts
  Session* session = nullptr;
  uint32_t device = 0;  // the client's ordinal of the context's device
};

struct Object : Identity {
  const wire::Kind kind;
  uint64_t serial = 0;  // which no other object of the process has or had; set by the arena

  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

 protected:
  Object(wire::Kind its_kind, const Identity& identity) : Identity(identity), kind(its_kind) {}
  ~Object() = default;
};

// An object that the client knows nothing of but its identity.
template <wire::Kind kItsKind>
struct PlainObject : Object {
  static constexpr wire::Kind kKind = kItsKind;
  explicit PlainObject(const Identity& identity) : Object(kKind, identity) {}
};

using GraphExec = PlainObject<wire::Kind::kGraphExec>;
using MemoryPool = PlainObject<wire::Kind::kMemoryPool>;
using Array = PlainObject<wire::Kind::kArray>;
using MipmappedArray = PlainObject<wire::Kind::kMipmappedArray>;
using Texture = PlainObject<wire::Kind::kTexture>;
using Surface = PlainObject<wire::Kind::kSurface>;
using GreenContext = PlainObject<wire::Kind::kGreenContext>;
using External = PlainObject<wire::Kind::kExternal>;

}  // namespace rcuda::client
