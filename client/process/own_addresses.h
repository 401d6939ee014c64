// The addresses that this process already uses. Its servers must not use them for device memory.
//
// Any thread. Blocking: reads a file of /proc. If the file cannot be read, the list is empty, and
// the later reservation of a window fails if the window overlaps a mapping.
#pragma once

#include <vector>

#include "common/base/address_space.h"
#include "common/wire/address_window.h"

namespace rcuda::client {

// Returns the addresses of page-locked memory: the usual range, or another range of the same size
// if this process already has mappings there (as with newer versions of AddressSanitizer). The
// first call chooses the range. If it is not the usual range, own_addresses() includes it, so that
// the workers do not use it.
const wire::AddressWindow& host_addresses();
// Returns the range that host_addresses() chooses for a process with these mappings.
wire::AddressWindow host_addresses_beside(const std::vector<AddressRange>& mappings);

// Returns the parts of the workers' address ranges in which this process has mappings, each with a
// margin. Neighbouring parts are merged.
std::vector<wire::AddressWindow> own_addresses();

}  // namespace rcuda::client
