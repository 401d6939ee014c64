#include "client/process/own_addresses.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "common/base/address_space.h"
#include "common/wire/address_ranges.h"

namespace rcuda::client {
namespace {

// Margin in bytes around each mapping, because the process usually makes new mappings next to
// existing ones.
constexpr uint64_t kRoom = 16 * wire::kWindowUnit;

constexpr wire::AddressWindow kUsual = {wire::kHostRangeBase, wire::kHostRangeBytes};

}  // namespace

wire::AddressWindow host_addresses_beside(const std::vector<AddressRange>& mappings) {
  constexpr uint64_t kUsualEnd = wire::kHostRangeBase + wire::kHostRangeBytes;
  const std::vector<AddressRange> usual = gaps(mappings, wire::kHostRangeBase, kUsualEnd);
  if (usual.size() == 1 && usual[0].end - usual[0].begin == kUsual.bytes) return kUsual;
  for (const AddressRange& span : wire::kWindowRanges) {
    for (const AddressRange& gap : gaps(mappings, span.begin, span.end)) {
      if (gap.end - gap.begin < kUsual.bytes + 2 * kRoom) continue;
      return {(gap.end - kRoom - kUsual.bytes) / wire::kWindowUnit * wire::kWindowUnit,
              kUsual.bytes};
    }
  }
  return kUsual;
}

const wire::AddressWindow& host_addresses() {
  static const wire::AddressWindow range = [] {
    const Result<std::vector<AddressRange>> mappings = own_mappings();
    return mappings.ok() ? host_addresses_beside(*mappings) : kUsual;
  }();
  return range;
}

std::vector<wire::AddressWindow> own_addresses() {
  const Result<std::vector<AddressRange>> mappings = own_mappings();
  std::vector<wire::AddressWindow> used;
  if (!mappings.ok()) return used;
  std::vector<AddressRange> spans(std::begin(wire::kWindowRanges), std::end(wire::kWindowRanges));
  spans.push_back(wire::kBases);
  for (const AddressRange& span : spans) {
    uint64_t last_end = 0;
    for (const AddressRange& mapping : *mappings) {
      const uint64_t begin = std::max(mapping.begin - std::min(mapping.begin, kRoom), span.begin);
      const uint64_t end = std::min(mapping.end + kRoom, span.end);
      if (begin >= end) continue;
      if (begin <= last_end) {
        used.back().bytes = std::max(last_end, end) - used.back().base;
      } else {
        used.push_back({begin, end - begin});
      }
      last_end = std::max(last_end, end);
    }
  }
  if (host_addresses().base != kUsual.base) used.push_back(host_addresses());
  return used;
}

}  // namespace rcuda::client
