// Work in a message: its counters by name, those that are 0 left out. So builds with more counters
// and with fewer understand each other.
//
// Threads: any. Nothing blocks. Errors are the reader's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "common/wire/message_codec.h"
#include "common/wire/work.h"

namespace rcuda::wire {

// Far above what a build has.
inline constexpr uint32_t kMaxCounters = 1024;

inline void write(MessageWriter& out, const Work& work) {
  const auto zeros = std::count(work.counts.begin(), work.counts.end(), 0u);
  out.number(static_cast<uint32_t>(work.counts.size() - static_cast<size_t>(zeros)));
  for (size_t i = 0; i < work.counts.size(); ++i) {
    if (work.counts[i] == 0) continue;
    out.string(kWorkNames[i]);
    out.number(work.counts[i]);
  }
}

// Counters that this build does not know are skipped.
inline bool read(MessageReader& in, Work* work) {
  uint32_t count = 0;
  if (!in.count(&count, kMaxCounters, sizeof(uint32_t) + sizeof(uint64_t))) return false;
  bool ok = true;
  for (uint32_t i = 0; i < count && ok; ++i) {
    std::string name;
    uint64_t value = 0;
    in.string(&name);
    ok = in.number(&value);
    const auto found = std::find(kWorkNames.begin(), kWorkNames.end(), name);
    if (found != kWorkNames.end()) {
      work->counts[static_cast<size_t>(found - kWorkNames.begin())] = value;
    }
  }
  return ok;
}

}  // namespace rcuda::wire
