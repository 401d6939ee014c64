// Maps a kind, which generated code uses, to the type of its objects. This is the only list of all
// types.
#pragma once

#include "client/objects/allocation.h"
#include "client/objects/arena.h"
#include "client/objects/code.h"
#include "client/objects/graph.h"
#include "client/objects/graph_exec.h"
#include "client/objects/object.h"
#include "client/objects/stream.h"

namespace rcuda::client {

// Calls use.template operator()<T>() with the type of the kind. Returns a value-initialised result
// for kinds without a type.
template <typename Use>
auto with_type(wire::Kind kind, const Use& use) {
  switch (kind) {
    case wire::Kind::kContext:
      return use.template operator()<Context>();
    case wire::Kind::kStream:
      return use.template operator()<Stream>();
    case wire::Kind::kEvent:
      return use.template operator()<Event>();
    case wire::Kind::kModule:
      return use.template operator()<Module>();
    case wire::Kind::kFunction:
      return use.template operator()<Function>();
    case wire::Kind::kLibrary:
      return use.template operator()<Library>();
    case wire::Kind::kKernel:
      return use.template operator()<Kernel>();
    case wire::Kind::kGraph:
      return use.template operator()<Graph>();
    case wire::Kind::kGraphNode:
      return use.template operator()<GraphNode>();
    case wire::Kind::kGraphExec:
      return use.template operator()<GraphExec>();
    case wire::Kind::kMemoryPool:
      return use.template operator()<MemoryPool>();
    case wire::Kind::kArray:
      return use.template operator()<Array>();
    case wire::Kind::kMipmappedArray:
      return use.template operator()<MipmappedArray>();
    case wire::Kind::kTexture:
      return use.template operator()<Texture>();
    case wire::Kind::kSurface:
      return use.template operator()<Surface>();
    case wire::Kind::kLinkState:
      return use.template operator()<LinkState>();
    case wire::Kind::kUserObject:
      return use.template operator()<UserObject>();
    case wire::Kind::kAllocation:
      return use.template operator()<AllocationHandle>();
    case wire::Kind::kTextureReference:
      return use.template operator()<TextureReference>();
    case wire::Kind::kSurfaceReference:
      return use.template operator()<SurfaceReference>();
    case wire::Kind::kNone:
    case wire::Kind::kCount:
      break;
  }
  return decltype(use.template operator()<Context>())();
}

// Returns the object of the handle, or null if the handle is not a live object of the kind.
Object* find_object(const void* handle, wire::Kind kind);
// Creates an object of a type that needs only an identity. Returns null for other types, if four
// million objects of the type are alive, or if no memory is left.
Object* create_object(wire::Kind kind, const Identity& identity);
void destroy_object(Object* object);

}  // namespace rcuda::client
