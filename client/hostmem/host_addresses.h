// HostAddresses: assigns addresses of the host range (common/wire/address_ranges.h) to page-locked
// memory.
//
// Where pages are not shared, memory is mirrored after its address appears in a kernel's parameters
// (host_memory.h). From that time on, launches and waits search all of it for changes. But
// parameters may have unused bytes, for example in PyTorch's kernels for tensors with few
// dimensions. There, a small integer may precede the upper half of an old pointer, and both
// together look like an address. So allocations of up to kMostQuietBytes get addresses whose lower
// half is an unlikely value, if such addresses are free: as an integer the value is negative and
// not small, as a float its magnitude is unusually large. (At other addresses, a training step of
// ResNet-50 took 20 times as long in one of three runs: an integer of 1 before an old pointer's
// upper half looked like an address of the training images.)
//
// Freed addresses are used again, the lowest first. Guard pages separate neighbours.
// Threads: any. Nothing blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "common/base/mutex.h"
#include "common/wire/address_ranges.h"
#include "common/wire/address_window.h"

namespace rcuda::client {

class HostAddresses {
 public:
  static constexpr size_t kMostQuietBytes = 512u << 20;

  HostAddresses() : HostAddresses({wire::kHostRangeBase, wire::kHostRangeBytes}) {}
  explicit HostAddresses(const wire::AddressWindow& range) : free_{{range.base, range.bytes}} {}

  // Returns 0 if no free range is large enough.
  uint64_t take(size_t bytes);
  // Frees an address that take() returned for `bytes`.
  void give_back(uint64_t base, size_t bytes);

 private:
  std::optional<uint64_t> lowest_quiet(size_t size) const RCUDA_REQUIRES(mutex_);
  std::optional<uint64_t> lowest(size_t size) const RCUDA_REQUIRES(mutex_);
  void cut(uint64_t base, size_t size) RCUDA_REQUIRES(mutex_);

  Mutex mutex_;
  std::map<uint64_t, size_t> free_ RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::client
