// Small mapped allocations, many in one region.
//
// Memory that kernels may use at any time is mirrored where pages are not shared (mirror.h). Each
// launch compares every mirror, and each wait asks about every mirror, so thousands of them would
// cost milliseconds. The first kMostAlone allocations have a region each: then a wait brings the
// few bytes of a flag with its own answer. Further ones share regions, as in a local driver.
// Threads: any. Blocking: both functions if a region begins or ends; give_back_small() also waits
// until the devices are idle.
#pragma once

#include <cstddef>

#include <cuda.h>

#include "client/route/route.h"

namespace rcuda::client {

inline constexpr size_t kMostSmallBytes = 32u << 10;
inline constexpr size_t kMostAlone = 4;

// Sets *memory to a zeroed piece of a mirrored region, or to null if the caller must make a region
// for this allocation alone.
CUresult take_small(const Target& target, size_t bytes, void** memory);
// Call it once for each successful take_small(), even if that set null. Returns false if `memory`
// is not a piece; the caller then ends the region that it has made for the allocation, if any.
bool give_back_small(const Target& target, void* memory, size_t bytes);

}  // namespace rcuda::client
