// A region of the host range (common/wire/address_ranges.h): new page-locked memory that every
// worker has at the same address. A page-locked allocation has its own region, or many small
// allocations share one (small_host_memory.h). Threads: any. Blocking: a round trip per session.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <cuda.h>

#include "client/route/find_route.h"
#include "client/session/session.h"

namespace rcuda::client {

// The sessions that memory of this process is exposed to, with the memory's region in each session.
using Exposures = std::vector<std::pair<Session*, transport::RegionId>>;

struct HostRegion {
  void* address = nullptr;
  size_t bytes = 0;  // whole pages
  Exposures exposed;
};

// Implemented in host_memory.cpp. The memory is zero. CUDA_ERROR_OUT_OF_MEMORY may also mean that
// the host range has no free addresses.
CUresult make_region(const Route& route, size_t bytes, HostRegion* region);
// Waits for the device, then unmaps the region. The caller must not use the memory any more.
void end_region(const HostRegion& region, const Route& route);
// Mirrors the region with every worker that does not map its pages.
void mirror_region(const HostRegion& region);
// Whether any worker does not map the pages of regions.
bool any_mirrors_regions();

}  // namespace rcuda::client
