// AddressFence: makes a worker's driver allocate inside the worker's own window of addresses.
//
// Device pointers of several servers and the client's own host pointers share one number space (see
// common/wire/address_ranges.h). A driver takes addresses from the kernel, which hands them out
// from the top; so before the driver is initialised everything that is free above the window is
// mapped inaccessible, and allocations land in the window, at full speed and with everything
// native. Its stream-ordered pools take the lowest free addresses from kPoolBase instead, so what
// lies there below the worker's share is mapped inaccessible as well. Measured with driver 580:
// plain, pinned and managed memory obey the one, pools the other, with every window. raise_fence()
// is called once, before any other thread exists. It maps a few ranges and costs microseconds;
// nothing is committed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/wire/address_ranges.h"
#include "common/wire/handshake.h"
#include "server/executor/executor.h"

namespace rcuda::server {

// The window of this index, below wire::kWindowCount.
wire::AddressWindow address_window(uint32_t index);
bool overlap(const wire::AddressWindow& a, const wire::AddressWindow& b);

// The free ranges of [from, to) between `mappings`, which are sorted and do not overlap.
std::vector<AddressRange> gaps(const std::vector<AddressRange>& mappings, uint64_t from,
                               uint64_t to);

// Closes what lies above the window, and below its pools, and says what that was. kInvalidArgument
// when something is in the window already.
Result<std::vector<AddressRange>> raise_fence(const wire::AddressWindow& window);

}  // namespace rcuda::server
