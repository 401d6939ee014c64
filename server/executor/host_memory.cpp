#include "server/executor/host_memory.h"

#include <sys/mman.h>

#include "common/base/log.h"
#include "server/executor/executor.h"

namespace rcuda::server {
namespace {

constexpr uint64_t kPage = 4096;

constexpr unsigned kKnownFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                                 CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;

}  // namespace

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

// Memory of the client goes where the client keeps its pinned memory, a range that holds nothing of
// this process: the address comes from the wire, and mapping there replaces what is there.
bool HostMemory::may_map(uint64_t address, uint64_t bytes) const {
  const SessionResources& resources = executor_.resources();
  return address >= resources.host_range_base && bytes <= resources.host_range_bytes &&
         address - resources.host_range_base <= resources.host_range_bytes - bytes;
}

CUresult HostMemory::expose(const wire::HostExposeBody& body) {
  if (body.bytes == 0 || body.address % kPage != 0 || body.address + body.bytes < body.address ||
      (body.flags & ~kKnownFlags) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto next = ranges_.lower_bound(body.address);
  if ((next != ranges_.end() && next->first - body.address < body.bytes) ||
      (next != ranges_.begin() &&
       body.address - std::prev(next)->first < std::prev(next)->second.bytes)) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  void* const wanted = reinterpret_cast<void*>(body.address);
  Range range{body.bytes, body.region, body.has_backing == 0, false};
  if (!executor_.resources().shared_address_space) {
    const uint64_t bytes = (body.bytes + kPage - 1) & ~(kPage - 1);
    if (!may_map(body.address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (range.shadow) {
      void* got = ::mmap(wanted, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
      if (got == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    } else {
      Result<void*> mapped =
          executor_.link().map(static_cast<transport::RegionId>(body.region), wanted);
      if (!mapped.ok() || *mapped != wanted) {
        RCUDA_WARN("client memory at %p cannot be mapped: %s", wanted,
                   mapped.ok() ? "its region has no backing" : mapped.status().message().c_str());
        return CUDA_ERROR_INVALID_VALUE;
      }
    }
    range.mapped = true;
  }
  // Portable: the client's contexts all see it, as they would see memory registered locally.
  const CUresult result = executor_.driver().cuMemHostRegister_v2(
      wanted, body.bytes, body.flags | CU_MEMHOSTREGISTER_PORTABLE);
  if (result != CUDA_SUCCESS) {
    Range unregistered = range;
    if (unregistered.mapped && unregistered.shadow) ::munmap(wanted, body.bytes);
    if (unregistered.mapped && !unregistered.shadow) {
      (void)executor_.link().unmap(static_cast<transport::RegionId>(body.region));
    }
    return result;
  }
  ranges_.emplace(body.address, range);
  return CUDA_SUCCESS;
}

CUresult HostMemory::unexpose(const wire::HostUnexposeBody& body) {
  auto found = ranges_.find(body.address);
  if (found == ranges_.end() || found->second.region != body.region) {
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  release(found->first, found->second);
  ranges_.erase(found);
  return CUDA_SUCCESS;
}

void HostMemory::release(uint64_t address, const Range& range) {
  void* const base = reinterpret_cast<void*>(address);
  executor_.driver().cuMemHostUnregister(base);
  if (!range.mapped) return;
  if (range.shadow) {
    ::munmap(base, range.bytes);
  } else {
    (void)executor_.link().unmap(static_cast<transport::RegionId>(range.region));
  }
}

}  // namespace rcuda::server
