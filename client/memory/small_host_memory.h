// Small mapped allocations, many in one region.
//
// Memory that kernels may use at any time is mirrored where pages are not shared (mirror.h). Each
// launch compares every mirror, and each wait asks about every mirror, so thousands of them would
// cost milliseconds. The first kMostAlone allocations have a region each: then a wait brings the
// few bytes of a flag with its own answer. Further ones share regions, as a driver places them.
// Threads: any. Blocking: take() and give_back() for a new region or an ended one, give_back()
// until the devices are idle.
#pragma once

#include <cstddef>

#include <cuda.h>

#include "client/calls/marshal.h"

namespace rcuda::client {

inline constexpr size_t kMostSmallBytes = 32u << 10;
inline constexpr size_t kMostAlone = 4;

// Returns a piece of a mirrored region, all zeros; null with CUDA_SUCCESS if the allocation is to
// have a region of its own.
CUresult take_small(const Target& target, size_t bytes, void** memory);
// For each successful take_small(), also if that gave no memory. Returns false if `memory` is not
// from there: the caller ends its region, if it has made one.
bool give_back_small(const Target& target, void* memory, size_t bytes);

}  // namespace rcuda::client
