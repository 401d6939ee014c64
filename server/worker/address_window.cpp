#include "server/worker/address_window.h"

#include <algorithm>
#include <string>

#include "common/wire/address_ranges.h"

namespace rcuda::server {
namespace {

constexpr uint64_t kUserEnd = 1ull << 47;
// The devices of a server have less memory. So products with it do not overflow.
constexpr uint64_t kMostMemory = 1ull << 46;

// The whole units of the device ranges that nothing uses, in the order of the device ranges.
std::vector<AddressRange> free_units(const std::vector<AddressRange>& used) {
  std::vector<AddressRange> units;
  for (const wire::AddressSpan& span : wire::kDeviceRanges) {
    for (const AddressRange& gap : gaps(used, span.begin, span.end)) {
      const uint64_t begin =
          (gap.begin + wire::kWindowUnit - 1) / wire::kWindowUnit * wire::kWindowUnit;
      const uint64_t end = gap.end / wire::kWindowUnit * wire::kWindowUnit;
      if (begin < end) units.push_back({begin, end});
    }
  }
  return units;
}

uint64_t size_of(const AddressRange& range) { return range.end - range.begin; }

// The largest size, in whole units, of which the free ranges have room for so many windows.
uint64_t fair_share(const std::vector<AddressRange>& free, uint32_t windows) {
  const auto room = [&](uint64_t bytes) {
    uint64_t count = 0;
    for (const AddressRange& range : free) count += size_of(range) / bytes;
    return count;
  };
  uint64_t fits = 0;  // in units, like the next
  uint64_t too_many = kUserEnd / wire::kWindowUnit;
  while (too_many - fits > 1) {
    const uint64_t units = (fits + too_many) / 2;
    (room(units * wire::kWindowUnit) >= windows ? fits : too_many) = units;
  }
  return fits * wire::kWindowUnit;
}

std::string gigabytes(uint64_t bytes) { return std::to_string(bytes >> 30) + " GiB"; }

}  // namespace

WindowRequest window_request(const wire::Hello& hello, uint64_t memory_bytes,
                             std::vector<AddressRange> own_mappings) {
  WindowRequest request;
  request.memory_bytes = memory_bytes;
  const uint32_t servers = std::min(hello.servers, wire::kMostServers);
  request.servers_left = servers > hello.worker ? servers - hello.worker : 1;
  request.used = std::move(own_mappings);
  for (const wire::AddressWindow& range : hello.taken) {
    if (range.base >= kUserEnd) continue;
    request.used.push_back({range.base, range.base + std::min(range.bytes, kUserEnd - range.base)});
  }
  return request;
}

Result<wire::AddressWindow> choose_window(WindowRequest request) {
  std::sort(request.used.begin(), request.used.end(),
            [](const AddressRange& a, const AddressRange& b) { return a.begin < b.begin; });
  const std::vector<AddressRange> free = free_units(request.used);
  const AddressRange* largest = nullptr;
  for (const AddressRange& range : free) {
    if (!largest || size_of(range) > size_of(*largest)) largest = &range;
  }
  const uint64_t memory = std::min(request.memory_bytes, kMostMemory);
  const uint64_t least = wire::kLeastWindowTimes * memory + wire::kWindowOwnBytes;
  const uint64_t most = std::max(wire::kMostWindowTimes * memory, wire::kSmallWindowBytes);
  if (!largest || size_of(*largest) < least) {
    return Status(Code::kUnavailable,
                  "the servers of this session do not fit into the addresses of one program: this "
                  "one needs " +
                      gigabytes(least) + " of them for devices of " + gigabytes(memory) +
                      ", and the largest free range has " +
                      gigabytes(largest ? size_of(*largest) : 0) +
                      "; name fewer servers or devices in RCUDA_DEVICES");
  }
  const uint64_t share = fair_share(free, std::max(request.servers_left, 1u));
  uint64_t bytes = std::min(std::max(std::min(share, most), least), size_of(*largest));
  bytes = bytes / wire::kWindowUnit * wire::kWindowUnit;
  const auto chosen = std::find_if(
      free.begin(), free.end(), [&](const AddressRange& range) { return size_of(range) >= bytes; });
  return wire::AddressWindow{chosen->begin, bytes};
}

}  // namespace rcuda::server
