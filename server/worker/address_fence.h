// AddressFence: makes a worker's driver allocate inside the worker's own window of addresses.
//
// Device pointers of several servers and the client's own host pointers share one number space
// (common/wire/address_ranges.h). A driver takes addresses from the kernel, which hands them out
// from the top. So before the driver is initialised, all free addresses above the window are mapped
// inaccessible, and allocations land in the window. Stream-ordered pools take the lowest free
// addresses from kPoolBase instead, so the addresses from there to the worker's share are mapped
// inaccessible as well. Measured with driver 580: plain, pinned and managed memory follow the first
// rule, pools the second, with every window.
// Threads: raise_fence() is called once, before any other thread exists. Blocking: it maps a few
// ranges in microseconds and commits no memory. Errors: as the function says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/wire/address_ranges.h"
#include "common/wire/handshake.h"
#include "server/executor/memory/address_range.h"

namespace rcuda::server {

// The window with this index, which must be less than wire::kWindowCount.
wire::AddressWindow address_window(uint32_t index);
bool overlap(const wire::AddressWindow& a, const wire::AddressWindow& b);

// The free ranges of [from, to) between `mappings`, which are sorted and do not overlap.
std::vector<AddressRange> gaps(const std::vector<AddressRange>& mappings, uint64_t from,
                               uint64_t to);

// Makes the free addresses above the window and below its pools inaccessible, and returns these
// ranges. kInvalidArgument if an address of the window is in use.
Result<std::vector<AddressRange>> raise_fence(const wire::AddressWindow& window);

}  // namespace rcuda::server
