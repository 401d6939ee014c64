// Small mapped allocations, many in one region.
//
// Memory that kernels may use at any time is mirrored where pages are not shared (mirror.h). Each
// launch compares every mirror, and each wait queries every mirror, so thousands of mirrors would
// cost milliseconds. So small allocations share regions, as in a local driver. If there are
// thousands of them, they also share cache lines (SmallPieces).
// Threads: any. Blocking: both functions if a region begins or ends; give_back_small() also waits
// until the devices are idle.
#pragma once

#include <cstddef>

#include <cuda.h>

#include "client/route/find_route.h"

namespace rcuda::client {

inline constexpr size_t kMostSmallBytes = 32u << 10;

// Sets *memory to a zeroed piece of a mirrored region, or to null if the caller must make a region
// for this allocation alone: if all workers share pages with the client, or if the allocation has
// more than kMostSmallBytes.
CUresult take_small(const Route& route, size_t bytes, void** memory);
// Returns false if `memory` is not a piece. The caller then ends the allocation's region.
bool give_back_small(const Route& route, void* memory, size_t bytes);

}  // namespace rcuda::client
