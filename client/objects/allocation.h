// Handles of allocations of cuMemCreate.
#pragma once

#include <cstdint>

#include "client/objects/object.h"

namespace rcuda::client {

struct AllocationHandle : Object {
  static constexpr wire::Kind kKind = wire::Kind::kAllocation;
  explicit AllocationHandle(const Identity& identity) : Object(kKind, identity) {}

  // References taken by cuMemRetainAllocationHandle. Guarded by Session::references_mutex().
  uint64_t retained = 0;
};

}  // namespace rcuda::client
