// The hash FNV-1a of 64 bits, http://www.isthe.com/chongo/tech/comp/fnv/. Pure.
#pragma once

#include <cstdint>
#include <string_view>

namespace rcuda {

// `start`: the hash of the preceding text, to continue it; or any other value, for a second hash of
// the same text.
constexpr uint64_t fnv1a(std::string_view text, uint64_t start = 0xcbf29ce484222325) {
  uint64_t hash = start;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}
static_assert(fnv1a("a") == 0xaf63dc4c8601ec8c);

}  // namespace rcuda
