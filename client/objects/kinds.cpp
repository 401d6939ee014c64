#include "client/objects/kinds.h"

#include <concepts>

namespace rcuda::client {

Object* find_object(const void* handle, wire::Kind kind) {
  return with_type(kind, [=]<typename T>() -> Object* { return find<T>(handle); });
}

Object* create_object(wire::Kind kind, const Identity& identity) {
  return with_type(kind, [&]<typename T>() -> Object* {
    if constexpr (std::constructible_from<T, const Identity&>) {
      return create<T>(identity);
    } else {
      return nullptr;
    }
  });
}

void destroy_object(Object* object) {
  with_type(object->kind, [=]<typename T>() { destroy(static_cast<T*>(object)); });
}

}  // namespace rcuda::client
