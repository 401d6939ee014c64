// Encodes Work in a message, as the names and values of its nonzero counters. Builds with different
// counters can read each other's messages, because a reader skips unknown names.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "common/messages/message_codec.h"
#include "common/messages/work.h"

namespace rcuda::wire {

// Far above the number of counters of a build.
inline constexpr uint32_t kMaxCounters = 1024;

struct NamedCount {
  std::string name;
  uint64_t count = 0;
};

template <typename Visitor>
void fields(Visitor& visit, NamedCount& m) {
  visit.string("name", m.name);
  visit.number("count", m.count);
}

template <typename Visitor>
void fields(Visitor& visit, Work& work) {
  std::vector<NamedCount> counters;
  for (size_t i = 0; i < work.counts.size(); ++i) {
    if (work.counts[i] != 0) counters.push_back({kWorkNames[i], work.counts[i]});
  }
  visit.list("counters", counters, kMaxCounters);
  if constexpr (Visitor::kReads) {
    for (const NamedCount& counter : counters) {
      const auto found = std::find(kWorkNames.begin(), kWorkNames.end(), counter.name);
      if (found == kWorkNames.end()) continue;  // unknown to this build
      work.counts[static_cast<size_t>(found - kWorkNames.begin())] = counter.count;
    }
  }
}

}  // namespace rcuda::wire
