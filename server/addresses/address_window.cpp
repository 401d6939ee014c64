#include "server/addresses/address_window.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <functional>

#include "common/base/units.h"

namespace rcuda::server {
namespace {

constexpr uint64_t kUserEnd = 1ull << 47;
// More memory than any server's devices have. Larger values are reduced to this value, so that
// products do not overflow.
constexpr uint64_t kMostMemory = 1ull << 46;
// The distance between successive bases of a server, in bases. It is odd, and the number of bases
// is a power of two, so Bases::at() reaches every base.
constexpr uint32_t kStep = 97;
static_assert((wire::kBaseCount & (wire::kBaseCount - 1)) == 0);
static_assert(wire::kBaseCount >> kMostDoublings != 0);

// Returns the free parts of the window ranges, in whole units of kWindowUnit.
std::vector<AddressRange> free_units(const WindowRequest& request) {
  std::vector<AddressRange> units;
  for (const AddressRange& span : wire::kWindowRanges) {
    for (const AddressRange& closed : request.free) {
      const uint64_t from = std::max(span.begin, closed.begin);
      const uint64_t to = std::min(span.end, closed.end);
      if (from >= to) continue;
      for (const AddressRange& gap : gaps(request.taken, from, to)) {
        const uint64_t begin =
            (gap.begin + wire::kWindowUnit - 1) / wire::kWindowUnit * wire::kWindowUnit;
        const uint64_t end = gap.end / wire::kWindowUnit * wire::kWindowUnit;
        if (begin < end) units.push_back({begin, end});
      }
    }
  }
  return units;
}

uint64_t size_of(const AddressRange& range) { return range.end - range.begin; }

// The largest window size, in whole units, at which the free ranges hold `windows` windows.
uint64_t fair_share(const std::vector<AddressRange>& free, uint32_t windows) {
  const auto room = [&](uint64_t bytes) {
    uint64_t count = 0;
    for (const AddressRange& range : free) count += size_of(range) / bytes;
    return count;
  };
  uint64_t fits = 0;  // in units, as `too_many`
  uint64_t too_many = kUserEnd / wire::kWindowUnit;
  while (too_many - fits > 1) {
    const uint64_t units = (fits + too_many) / 2;
    (room(units * wire::kWindowUnit) >= windows ? fits : too_many) = units;
  }
  return fits * wire::kWindowUnit;
}

}  // namespace

uint32_t Base::number() const {
  return doublings * wire::kBaseCount + index % (wire::kBaseCount >> doublings);
}

Base Base::from_number(uint32_t number) {
  return {number % wire::kBaseCount, std::min(number / wire::kBaseCount, kMostDoublings)};
}

wire::AddressWindow Base::range() const {
  const uint64_t bytes = wire::kBaseBytes << doublings;
  return {wire::kBases.begin + index % (wire::kBaseCount >> doublings) * bytes, bytes};
}

uint32_t doublings_for(size_t gpus) {
  // The smallest base is for two GPUs.
  const auto bits = static_cast<uint32_t>(std::bit_width(std::max<size_t>(gpus, 2) - 1));
  return std::min(bits - 1, kMostDoublings);
}

Bases::Bases(const std::string& host, uint16_t port) : first_(port) {
  const std::string name = host.substr(0, host.find('.'));
  const size_t digits = name.find_last_not_of("0123456789") + 1;  // 0 if all are digits
  uint32_t number = 0;
  const auto [end, error] =
      std::from_chars(name.data() + digits, name.data() + name.size(), number);
  const bool numbered = digits < name.size() && error == std::errc();
  first_ += numbered ? number : static_cast<uint32_t>(std::hash<std::string>()(host));
}

uint32_t Bases::at(uint32_t preference) const {
  return (first_ + preference * kStep) % wire::kBaseCount;
}

bool is_taken(const wire::Hello& hello, const wire::AddressWindow& range) {
  return std::any_of(hello.taken.begin(), hello.taken.end(), [&](const wire::AddressWindow& other) {
    return range.base < other.base ? other.base - range.base < range.bytes
                                   : range.base - other.base < other.bytes;
  });
}

WindowRequest window_request(const wire::Hello& hello, uint64_t memory_bytes,
                             const std::vector<AddressRange>& closed) {
  WindowRequest request;
  request.memory_bytes = memory_bytes;
  request.devices = std::max<uint32_t>(1, static_cast<uint32_t>(hello.devices.size()));
  request.devices_left = std::max(request.devices, hello.devices_left);
  request.free = closed;
  for (const wire::AddressWindow& range : hello.taken) {
    if (range.base >= kUserEnd) continue;
    request.taken.push_back(
        {range.base, range.base + std::min(range.bytes, kUserEnd - range.base)});
  }
  return request;
}

Result<wire::AddressWindow> choose_window(WindowRequest request) {
  sort_by_begin(&request.taken);
  const std::vector<AddressRange> free = free_units(request);
  uint64_t largest = 0;
  for (const AddressRange& range : free) largest = std::max(largest, size_of(range));
  const uint64_t memory = std::min(request.memory_bytes, kMostMemory);
  const uint64_t least = wire::kLeastWindowTimes * memory + wire::kWindowOwnBytes;
  const uint64_t most = std::max(wire::kMostWindowTimes * memory, wire::kSmallWindowBytes);
  if (largest < least) {
    return Status(Code::kInvalidArgument,
                  "the servers of this program do not fit into its address space: this server "
                  "needs " +
                      bytes_text(least) + " of addresses for devices with " + bytes_text(memory) +
                      " of memory, and the largest free range has " + bytes_text(largest) +
                      "; name fewer servers or devices in RCUDA_DEVICES");
  }
  // Assumes that the session's other servers have as many devices as this one.
  const uint32_t windows = (request.devices_left - 1) / request.devices + 1;
  const uint64_t share = fair_share(free, windows);
  uint64_t bytes = std::min(std::max(std::min(share, most), least), largest);
  bytes = bytes / wire::kWindowUnit * wire::kWindowUnit;
  // Takes the smallest free range that is large enough: large ranges stay free for servers with
  // more memory.
  const auto size_if_fits = [&](const AddressRange& range) {
    return size_of(range) >= bytes ? size_of(range) : kUserEnd;
  };
  const auto chosen =
      std::min_element(free.begin(), free.end(), [&](const AddressRange& a, const AddressRange& b) {
        return size_if_fits(a) < size_if_fits(b);
      });
  return wire::AddressWindow{chosen->begin, bytes};
}

}  // namespace rcuda::server
