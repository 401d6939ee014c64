// HostAddresses: which addresses of the host range page-locked memory has.
//
// Where pages are not shared, memory whose address appears in a kernel's parameters is mirrored
// from then on (host_memory.h), and launches and waits then look for changes in all of it. But
// parameters have unused bytes, as those of PyTorch's kernels for tensors with few dimensions, and
// in them half of an old pointer can stand beside a small integer. So allocations of up to
// kMostQuietBytes have addresses whose lower half is no likely integer: negative, but not small,
// and as a float of no usual size. (With others, a training step of ResNet-50 took 20 times as long
// in one of three runs: a size of 1 in front of an old pointer's upper half pointed into the
// images.)
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

  // 0: there is no room.
  uint64_t take(size_t bytes);
  // What take() returned for so many bytes.
  void give_back(uint64_t base, size_t bytes);

 private:
  std::optional<uint64_t> lowest_quiet(size_t size) const RCUDA_REQUIRES(mutex_);
  std::optional<uint64_t> lowest(size_t size) const RCUDA_REQUIRES(mutex_);
  void cut(uint64_t base, size_t size) RCUDA_REQUIRES(mutex_);

  Mutex mutex_;
  std::map<uint64_t, size_t> free_ RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::client
