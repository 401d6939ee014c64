// Object: the base of all objects for which the application has a handle: streams, events, modules,
// graphs, ...
//
// Each kind is a separate type (stream.h, code.h, ...) that derives from Object. The handle is the
// object's address. arena.h creates, finds and destroys the objects.
#pragma once

#include <cstdint>

#include "common/wire/protocol.h"

namespace rcuda::client {

class Session;

// An object's id in its worker, and where the object belongs. Libraries, kernels and user objects
// exist on several workers or on none: they have no session and no id.
struct Identity {
  wire::ObjectId id = 0;
  wire::ObjectId context = 0;  // the context in which it was created; for a context, its own id
  Session* session = nullptr;
  uint32_t device = 0;  // the client's ordinal of the context's device
};

struct Object : Identity {
  const wire::Kind kind;
  // Unique among all objects of the process, also destroyed ones. Set by the arena.
  uint64_t serial = 0;

  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

 protected:
  Object(wire::Kind its_kind, const Identity& identity) : Identity(identity), kind(its_kind) {}
  ~Object() = default;
};

// The type of objects that have only an identity in the client.
template <wire::Kind kItsKind>
struct PlainObject : Object {
  static constexpr wire::Kind kKind = kItsKind;
  explicit PlainObject(const Identity& identity) : Object(kKind, identity) {}
};

using MemoryPool = PlainObject<wire::Kind::kMemoryPool>;
using Array = PlainObject<wire::Kind::kArray>;
using MipmappedArray = PlainObject<wire::Kind::kMipmappedArray>;
using Texture = PlainObject<wire::Kind::kTexture>;
using Surface = PlainObject<wire::Kind::kSurface>;
using TextureReference = PlainObject<wire::Kind::kTextureReference>;
using SurfaceReference = PlainObject<wire::Kind::kSurfaceReference>;

}  // namespace rcuda::client
