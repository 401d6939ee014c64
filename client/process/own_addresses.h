// The addresses that this program uses already, as its servers must know them.
//
// Any thread. Blocking: reads a file of /proc. Errors: if that is impossible, the list is empty,
// and the reservation of a window says later what it overlaps.
#pragma once

#include <vector>

#include "common/base/address_space.h"
#include "common/wire/handshake.h"

namespace rcuda::client {

// The range of page-locked memory: the usual one, or another of its size if this process already
// has mappings there (newer versions of AddressSanitizer do). Found at the first call. If it is not
// the usual range, own_addresses() includes it, so that the workers do not use it.
const wire::AddressWindow& host_addresses();
// The same for a process with these mappings.
wire::AddressWindow host_addresses_beside(const std::vector<AddressRange>& mappings);

// The parts of the ranges for workers where this process has mappings, with some room around each,
// in a few pieces.
std::vector<wire::AddressWindow> own_addresses();

}  // namespace rcuda::client
