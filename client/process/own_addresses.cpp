#include "client/process/own_addresses.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "common/base/address_space.h"
#include "common/wire/address_ranges.h"

namespace rcuda::client {
namespace {

// Heaps and mappings grow beside those that exist.
constexpr uint64_t kRoom = 16 * wire::kWindowUnit;

}  // namespace

std::vector<wire::AddressWindow> own_addresses() {
  const Result<std::vector<AddressRange>> mappings = own_mappings();
  std::vector<wire::AddressWindow> used;
  if (!mappings.ok()) return used;
  std::vector<wire::AddressSpan> spans(std::begin(wire::kWindowRanges),
                                       std::end(wire::kWindowRanges));
  spans.push_back(wire::kBases);
  for (const wire::AddressSpan& span : spans) {
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
  return used;
}

}  // namespace rcuda::client
