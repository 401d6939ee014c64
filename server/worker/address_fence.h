// AddressFence: makes a worker's driver allocate inside the worker's own window of addresses.
//
// Device pointers of several servers and the client's own host pointers share one number space (see
// docs: Addresses). Window k is the k-th TiB from 0x6000'0000'0000. A driver takes addresses from
// the kernel, which hands them out from the top; so before the driver is initialised everything
// that is free above the window is mapped inaccessible, and allocations land in the window, at full
// speed and with everything native. Measured with driver 580: plain, pinned and managed memory all
// obey; stream-ordered pools do not (their addresses are the same low ones in every process). Not
// possible under AddressSanitizer or ThreadSanitizer, whose shadows live there. raise_fence() is
// called once, before any other thread exists. It maps a few ranges and costs microseconds; nothing
// is committed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/wire/handshake.h"
#include "server/executor/executor.h"

namespace rcuda::server {

inline constexpr uint64_t kWindowBase = 0x6000'0000'0000;
inline constexpr uint64_t kWindowBytes = 1ull << 40;
inline constexpr uint32_t kWindowCount = 16;

wire::AddressWindow address_window(uint32_t index);
bool overlap(const wire::AddressWindow& a, const wire::AddressWindow& b);

// The free ranges of [from, to) between `mappings`, which are sorted and do not overlap.
std::vector<AddressRange> gaps(const std::vector<AddressRange>& mappings, uint64_t from,
                               uint64_t to);

// Closes what lies above the window and says what that was. kInvalidArgument when something is in
// the window already.
Result<std::vector<AddressRange>> raise_fence(const wire::AddressWindow& window);

}  // namespace rcuda::server
