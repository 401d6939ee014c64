// MirrorUse: before which launches the host's changes of mirrored memory (mirror.h) are sent. This
// depends on the memory's size, and on how kernels got the memory's address.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "common/wire/frame.h"

namespace rcuda::client {

// The launches before which the host's changes of mirrored memory are sent. All other work that may
// use the memory (graphs, copies, fills, host functions) sends them in any case.
enum class MirrorUse {
  kAny,  // all launches
  // Only launches with an address of the memory in their parameters. Used for memory of more than
  // kAlwaysSentBytes whose address kernels have got only as a part of a larger parameter. (The part
  // may be unused and hold an old address, and comparing large memory takes longer than a launch.)
  // Smaller memory is always kAny: it may hold flags that a running kernel waits for, so every
  // launch must send the host's changes. While work with an address of the memory runs, waits also
  // send these changes (show_writes()).
  kNamed,
};
inline constexpr size_t kAlwaysSentBytes = 64 << 10;

// A launch's parameters in the kernel's layout, in which pointers are aligned.
struct LaunchParameters {
  std::span<const std::byte> bytes;
  std::span<const wire::ParameterInfo> layout;  // empty: not known

  uint64_t word(size_t at) const {
    uint64_t value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  }
  // Calls visit(at) with the offset of each 64-bit word, which may be an address.
  template <typename Visit>
  void each_word(const Visit& visit) const {
    for (size_t at = 0; at + sizeof(uint64_t) <= bytes.size(); at += sizeof(uint64_t)) visit(at);
  }
  // Whether the word at this offset is a whole parameter, not part of a larger parameter.
  bool is_whole(size_t at) const {
    if (layout.empty()) return true;
    return std::any_of(layout.begin(), layout.end(), [at](const wire::ParameterInfo& parameter) {
      return parameter.offset_bytes == at && parameter.size_bytes == sizeof(uint64_t);
    });
  }
};

}  // namespace rcuda::client
