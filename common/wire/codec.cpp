#include "common/wire/codec.h"

#include <algorithm>

namespace rcuda::wire {
namespace {
// The count that encodes a null string.
constexpr uint32_t kNullString = ~0u;
}  // namespace

void Encoder::grow(size_t needed) {
  const size_t capacity = std::min(limit_, std::max(needed, 2 * capacity_));
  auto larger = std::make_unique_for_overwrite<std::byte[]>(capacity);
  std::memcpy(larger.get(), data_, size_);
  heap_ = std::move(larger);
  data_ = heap_.get();
  capacity_ = capacity;
}

void Encoder::bytes_of(const void* items, size_t count, size_t item_bytes) {
  if (count >= kNullString || count > limit_ / item_bytes) {
    fail();
    return;
  }
  value(static_cast<uint32_t>(count));
  std::byte* at = take(count * item_bytes, kBodyAlignment);
  if (at != nullptr && count != 0) std::memcpy(at, items, count * item_bytes);
}

void Encoder::string(const char* text) {
  if (text == nullptr) {
    value(kNullString);
    return;
  }
  array(text, std::strlen(text) + 1);
}

const char* Decoder::string() {
  const size_t start = position_;
  if (value<uint32_t>() == kNullString) return nullptr;
  position_ = start;
  const std::span<const char> text = array<char>();
  if (!ok_ || text.empty() || text.back() != '\0') {
    fail();
    return nullptr;
  }
  return text.data();
}

}  // namespace rcuda::wire
