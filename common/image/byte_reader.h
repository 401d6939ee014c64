// Bounded reads of little-endian structures from bytes that may be truncated or hostile.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/image/image.h"

namespace rcuda::image {

static_assert(std::endian::native == std::endian::little, "structures are read without conversion");

// Whether [offset, offset + size) lies inside `limit` bytes, without overflow.
inline bool fits(uint64_t offset, uint64_t size, uint64_t limit) {
  return offset <= limit && size <= limit - offset;
}

// Copies a T from `offset`, which need not be aligned. Returns false if the T does not fit.
template <typename T>
bool read_at(Bytes bytes, uint64_t offset, T* value) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (!fits(offset, sizeof(T), bytes.size())) return false;
  std::memcpy(value, bytes.data() + offset, sizeof(T));
  return true;
}

}  // namespace rcuda::image
