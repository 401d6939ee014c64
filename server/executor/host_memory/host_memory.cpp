#include "server/executor/host_memory/host_memory.h"

#include <algorithm>
#include <cerrno>
#include <future>
#include <iterator>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/pages.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::server {
namespace {

constexpr uint64_t kMost = 1ull << 47;  // end of the user addresses
// The lowest address that a client may expose. Null pointers must fault, even if this process runs
// as root, which may map the lowest pages (vm.mmap_min_addr).
constexpr uint64_t kLowest = 64u << 10;

constexpr unsigned kKnownFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                                 CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;

}  // namespace

CUresult not_moved(const Status& why) {
  RCUDA_INFO("a transfer of the program's host memory failed: %s", why.message().c_str());
  return CUDA_ERROR_INVALID_VALUE;
}

Status move_now(transport::Link& link, bool to_client, transport::RegionId region, uint64_t offset,
                void* local, uint64_t bytes) {
  // The promise is shared, because the Link's thread may still use it when the waiting thread goes
  // on.
  const auto outcome = std::make_shared<std::promise<Status>>();
  auto done = [outcome](const Status& status) { outcome->set_value(status); };
  if (to_client) {
    link.write(region, offset, local, bytes, std::move(done));
  } else {
    link.read(region, offset, local, bytes, std::move(done));
  }
  return outcome->get_future().get();
}

HostMemory::HostMemory(const api::DriverTable& driver, transport::Link& link,
                       transport::Arrivals& arrivals, ClientResources& resources,
                       MemoryMeter& meter, const Options& options)
    : driver_(driver),
      link_(link),
      arrivals_(arrivals),
      resources_(resources),
      meter_(meter),
      shared_address_space_(options.shared_address_space),
      client_writes_(options.client_writes) {
  for (const AddressRange& range : options.closed) keep(range.begin, range.end);
}

HostMemory::~HostMemory() {
  for (const auto& [address, range] : ranges_) release(address, range);
}

const HostMemory::Range* HostMemory::find(uint64_t address, uint64_t bytes, uint64_t* base) const {
  auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return nullptr;
  const auto& [start, range] = *std::prev(after);
  if (address - start >= range.bytes || bytes > range.bytes - (address - start)) return nullptr;
  if (base) *base = start;
  return &range;
}

// The address comes from the wire, and a mapping would replace any other mapping there. So the
// addresses must be free, or reserved by this process for memory of the client (kept_).
CUresult HostMemory::claim_addresses(uint64_t begin, uint64_t end) {
  std::vector<AddressRange> claimed;
  for (uint64_t at = begin; at < end;) {
    const auto next = kept_.upper_bound(at);
    if (next != kept_.begin() && std::prev(next)->second > at) {
      at = std::prev(next)->second;
      continue;
    }
    const uint64_t until = next == kept_.end() ? end : std::min(end, next->first);
    // A raw system call, because ThreadSanitizer's mmap() treats the address as a hint and maps
    // elsewhere.
    const long mapped =
        ::syscall(SYS_mmap, at, until - at, PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (mapped != static_cast<long>(at)) {
      // Either the process has too many mappings (vm.max_map_count), or the address is in use.
      const bool full = errno == ENOMEM;
      for (const AddressRange& range : claimed) {
        ::munmap(reinterpret_cast<void*>(range.begin), range.end - range.begin);
      }
      return full ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    }
    claimed.push_back({at, until});
    at = until;
  }
  for (const AddressRange& range : claimed) keep(range.begin, range.end);
  return CUDA_SUCCESS;
}

// Maps the client's pages, or a shadow of them, at their address.
CUresult HostMemory::place(uint64_t address, uint64_t bytes, Range* range) {
  RCUDA_RETURN_IF_CUDA_ERROR(claim_addresses(address, address + bytes));
  void* const wanted = reinterpret_cast<void*>(address);
  if (!range->shadow) {
    Result<void*> mapped =
        link_.map(static_cast<transport::RegionId>(range->region), bytes, wanted);
    if (!mapped.ok()) {
      RCUDA_WARN("the worker cannot map the program's host memory at %p: %s", wanted,
                 mapped.status().message().c_str());
      // Either the system refuses the mapping, or the client's data about the region are wrong.
      return mapped.status().code() == Code::kSystem ? CUDA_ERROR_OUT_OF_MEMORY
                                                     : CUDA_ERROR_INVALID_VALUE;
    }
    range->shadow = *mapped == nullptr;  // the medium shares no memory
  }
  if (range->shadow && ::mmap(wanted, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  range->mapped = true;
  return CUDA_SUCCESS;
}

void HostMemory::keep(uint64_t begin, uint64_t end) {
  auto at = kept_.upper_bound(begin);
  if (at != kept_.begin() && std::prev(at)->second >= begin) {
    --at;
    begin = at->first;
  }
  while (at != kept_.end() && at->first <= end) {
    end = std::max(end, at->second);
    at = kept_.erase(at);
  }
  kept_[begin] = end;
}

void HostMemory::take_away(uint64_t address, const Range& range) {
  if (!range.mapped) return;
  if (!range.shadow) {
    (void)link_.unmap(static_cast<transport::RegionId>(range.region));
    return;
  }
  // Leaves the range reserved, as Link::unmap() does, so that nothing else is mapped there.
  ::mmap(reinterpret_cast<void*>(address), whole_pages(range.bytes), PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

CUresult HostMemory::lock(const wire::HostExposeBody& body, Range* range) {
  if (!shared_address_space_) {
    CUresult placed = place(body.address, whole_pages(body.bytes), range);
    if (placed != CUDA_SUCCESS) return placed;
  }
  // The flags include CU_MEMHOSTREGISTER_PORTABLE, so all contexts of the client can use the
  // memory, as with memory that is registered locally.
  const CUresult result =
      driver_.cuMemHostRegister_v2(reinterpret_cast<void*>(body.address), body.bytes, range->flags);
  if (result != CUDA_SUCCESS) take_away(body.address, *range);
  return result;
}

// Lets the client write into the shadow. Does nothing on media with an adapter: the client would
// have to register its memory with the adapter before it could write, so the worker reads the
// memory instead.
CUresult HostMemory::open_to_writes(uint64_t address, Range* range) {
  const transport::MediumTraits& traits = link_.traits();
  if (!client_writes_ || !range->shadow || !traits.copies_by_cpu || !traits.has_immediates)
    return CUDA_SUCCESS;
  const Result<transport::Region> region =
      link_.expose(reinterpret_cast<void*>(address), range->bytes);
  if (!region.ok()) return CUDA_ERROR_OUT_OF_MEMORY;
  range->shadow_region = region->id;
  link_.lend(reinterpret_cast<void*>(address), range->bytes);
  return CUDA_SUCCESS;
}

CUresult HostMemory::expose(const wire::HostExposeBody& body) {
  if (body.bytes == 0 || body.address % page_bytes() != 0 || body.address < kLowest ||
      body.bytes > kMost || body.address > kMost - body.bytes || (body.flags & ~kKnownFlags) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto next = ranges_.lower_bound(body.address);
  if ((next != ranges_.end() && next->first - body.address < body.bytes) ||
      (next != ranges_.begin() &&
       body.address - std::prev(next)->first < std::prev(next)->second.bytes)) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  Range range;
  range.bytes = body.bytes;
  range.region = body.region;
  range.flags = body.flags | CU_MEMHOSTREGISTER_PORTABLE;
  range.shadow = body.has_backing == 0;
  if (!meter_.take(MemoryMeter::kHost, whole_pages(body.bytes))) return CUDA_ERROR_OUT_OF_MEMORY;
  if (CUresult result = lock(body, &range); result != CUDA_SUCCESS) {
    meter_.give(MemoryMeter::kHost, whole_pages(body.bytes));
    return result;
  }
  if (CUresult result = open_to_writes(body.address, &range); result != CUDA_SUCCESS) {
    release(body.address, range);
    return result;
  }
  if (body.callback) {
    range.unclaimed = resources_.make(body.callback);
    range.resource = range.unclaimed;
  }
  range.for_graphs = range.shadow || body.callback;
  if (range.for_graphs) ++for_graphs_;
  ranges_.emplace(body.address, std::move(range));
  return CUDA_SUCCESS;
}

std::shared_ptr<ClientResource> HostMemory::claim(uint64_t address) {
  uint64_t base = 0;
  if (!find(address, 1, &base)) return nullptr;
  Range& range = ranges_.at(base);
  std::shared_ptr<ClientResource> resource = range.resource.lock();
  range.unclaimed.reset();
  return resource;
}

CUresult HostMemory::unexpose(const wire::HostUnexposeBody& body) {
  auto found = ranges_.find(body.address);
  if (found == ranges_.end() || found->second.region != body.region) {
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  release(found->first, found->second);
  if (found->second.for_graphs) --for_graphs_;
  ranges_.erase(found);
  return CUDA_SUCCESS;
}

void HostMemory::lock_again() {
  for (const auto& [address, range] : ranges_) {
    void* const memory = reinterpret_cast<void*>(address);
    unsigned flags = 0;
    if (driver_.cuMemHostGetFlags(&flags, memory) != CUDA_ERROR_INVALID_VALUE) continue;
    const CUresult result = driver_.cuMemHostRegister_v2(memory, range.bytes, range.flags);
    if (result != CUDA_SUCCESS) {
      RCUDA_WARN("the worker cannot page-lock the program's host memory at %p again: CUDA error %d",
                 memory, static_cast<int>(result));
    }
  }
}

void HostMemory::release(uint64_t address, const Range& range) {
  // The driver waits here for copies that use the memory. Their bytes may still arrive from the
  // client, so the region must not end earlier.
  driver_.cuMemHostUnregister(reinterpret_cast<void*>(address));
  if (range.shadow_region != transport::RegionId::kNone) {
    (void)link_.unexpose(range.shadow_region);
    link_.take_back(reinterpret_cast<void*>(address), range.bytes);
    arrivals_.withdraw(range.shadow_region);
  }
  take_away(address, range);
  meter_.give(MemoryMeter::kHost, whole_pages(range.bytes));
}

}  // namespace rcuda::server
