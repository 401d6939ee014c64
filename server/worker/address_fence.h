// AddressFence: makes a worker's driver allocate inside the worker's window of addresses.
//
// Device pointers of several servers and the client's own host pointers share one number space
// (common/wire/address_ranges.h). A driver takes free addresses of its process: plain and pinned
// memory where the kernel finds room, from the top; stream-ordered pools and reservations from the
// bottom. So when a session begins, all free addresses outside of its window are mapped
// inaccessible. What does not fit into the window is refused by the kernel.
//
// Threads: any; the driver's threads may map memory meanwhile. Blocking: it maps a few ranges in
// microseconds and commits no memory. Errors: as the function says.
#pragma once

#include <vector>

#include "common/base/address_space.h"
#include "common/base/status.h"
#include "common/wire/handshake.h"

namespace rcuda::server {

// Makes the free addresses outside of the window inaccessible, and returns these ranges.
// kInvalidArgument if an address of the window is in use.
Result<std::vector<AddressRange>> raise_fence(const wire::AddressWindow& window);

}  // namespace rcuda::server
