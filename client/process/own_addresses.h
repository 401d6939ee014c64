// The addresses that this program uses already, as its servers must know them.
//
// Any thread. Blocking: reads a file of /proc. Errors: if that is impossible, the list is empty,
// and the reservation of a window says later what it overlaps.
#pragma once

#include <vector>

#include "common/wire/handshake.h"

namespace rcuda::client {

// The parts of the ranges for workers where this process has mappings, with some room around each,
// in a few pieces.
std::vector<wire::AddressWindow> own_addresses();

}  // namespace rcuda::client
