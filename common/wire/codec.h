// Encoder and Decoder: how the generated commands and their replies become bytes.
//
// Values lie one after another in declaration order, each aligned to its size; arrays and strings
// are a u32 count, then the elements on an 8-byte boundary. Offsets count from the start of the
// body, which itself starts on an 8-byte boundary. Padding is zero. An Encoder needs no heap for
// small bodies and never grows beyond its limit; a Decoder reads memory that it does not own and
// that must not change meanwhile (the worker copies commands out of the ring first). Both stick to
// their first failure, so that callers check once, at the end. Not thread-safe; nothing here
// blocks, throws or logs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>

#include "common/wire/protocol.h"

namespace rcuda::wire {

inline constexpr size_t kMaxBodyBytes = kMaxCommandBytes - sizeof(CommandHeader);
inline constexpr size_t kBodyAlignment = 8;

// What one item can be: a number, an enumeration, or a plain struct.
template <typename T>
concept Encodable = std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>;

template <Encodable T>
inline constexpr size_t kItemAlignment = alignof(T) < kBodyAlignment ? alignof(T) : kBodyAlignment;

class Encoder {
 public:
  explicit Encoder(size_t limit_bytes = kMaxBodyBytes) : limit_(limit_bytes) {}
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  template <Encodable T>
  void value(const T& item) {
    if (std::byte* at = take(sizeof(T), kItemAlignment<T>)) std::memcpy(at, &item, sizeof(T));
  }
  template <Encodable T>
  void array(const T* items, size_t count) {
    bytes_of(items, count, sizeof(T));
  }
  // With its terminator. A null string is not the empty string.
  void string(const char* text);

  bool ok() const { return ok_; }  // false: the body would have exceeded the limit
  size_t size() const { return size_; }
  std::span<const std::byte> body() const { return {data_, size_}; }

 private:
  // Room for `bytes` on an `alignment` boundary, or null, with ok() false from then on.
  std::byte* take(size_t bytes, size_t alignment) {
    const size_t at = (size_ + alignment - 1) & ~(alignment - 1);
    if (!ok_ || bytes > limit_ || at > limit_ - bytes) return fail();
    if (at + bytes > capacity_) grow(at + bytes);
    std::memset(data_ + size_, 0, at - size_);
    size_ = at + bytes;
    return data_ + at;
  }
  std::byte* fail() {
    ok_ = false;
    return nullptr;
  }
  void grow(size_t needed);
  void bytes_of(const void* items, size_t count, size_t item_bytes);

  static constexpr size_t kInlineBytes = 1024;
  size_t limit_;
  size_t capacity_ = kInlineBytes;
  size_t size_ = 0;
  bool ok_ = true;
  std::byte* data_ = inline_;
  std::unique_ptr<std::byte[]> heap_;
  alignas(kBodyAlignment) std::byte inline_[kInlineBytes];
};

class Decoder {
 public:
  // `body` must begin on an 8-byte boundary.
  explicit Decoder(std::span<const std::byte> body) : data_(body.data()), size_(body.size()) {}

  // Zero once something failed.
  template <Encodable T>
  T value() {
    if constexpr (std::is_enum_v<T>) {
      // Not loaded as an enumeration: the peer's number may be none of its values.
      return static_cast<T>(value<std::underlying_type_t<T>>());
    } else {
      T item{};
      if (const std::byte* at = take(sizeof(T), kItemAlignment<T>)) {
        std::memcpy(&item, at, sizeof(T));
      }
      return item;
    }
  }
  // Points into the body. Empty once something failed. Elements of more than 8-byte alignment do
  // not occur in the driver API's arrays.
  template <Encodable T>
  std::span<const T> array() {
    static_assert(alignof(T) <= kBodyAlignment);
    const uint32_t count = value<uint32_t>();
    if (count > size_ / sizeof(T)) return fail(), std::span<const T>();
    const std::byte* at = take(count * sizeof(T), kBodyAlignment);
    if (at == nullptr) return {};
    return {reinterpret_cast<const T*>(at), count};
  }
  // Points into the body and ends with a zero byte; null for a null string, and once something
  // failed.
  const char* string();

  // For readers that know no more of an item than its size and alignment: a struct, or an array of
  // them (returns its count).
  void skip(size_t bytes, size_t alignment) {
    take(bytes, alignment < kBodyAlignment ? alignment : kBodyAlignment);
  }
  size_t skip_array(size_t item_bytes) {
    const uint32_t count = value<uint32_t>();
    if (count > size_ / item_bytes) return fail(), 0;
    return take(count * item_bytes, kBodyAlignment) == nullptr ? 0 : count;
  }

  // Something was cut short or out of bounds.
  bool ok() const { return ok_; }
  // Everything was in bounds and nothing is left over.
  bool complete() const { return ok_ && position_ == size_; }
  // For values that are in bounds but cannot be.
  void reject() { ok_ = false; }
  size_t remaining() const { return size_ - position_; }

 private:
  const std::byte* take(size_t bytes, size_t alignment) {
    const size_t at = (position_ + alignment - 1) & ~(alignment - 1);
    if (!ok_ || at > size_ || bytes > size_ - at) return fail();
    position_ = at + bytes;
    return data_ + at;
  }
  const std::byte* fail() {
    ok_ = false;
    return nullptr;
  }

  const std::byte* data_;
  size_t size_;
  size_t position_ = 0;
  bool ok_ = true;
};

}  // namespace rcuda::wire
