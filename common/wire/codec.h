// Encoder and Decoder convert generated commands and their replies to bytes and back.
//
// Values follow one another in declaration order, each aligned as its type, but to 8 bytes at most.
// An array or a string is a u32 count, then the elements on an 8-byte boundary. Offsets count from
// the start of the body, which is on an 8-byte boundary. Padding is zero. An Encoder needs no heap
// for small bodies and never grows beyond its limit. A Decoder reads memory that it does not own,
// which must not change while it reads (the worker copies commands out of the ring first). Both
// keep their first failure, so callers check once, at the end. Not thread-safe; nothing here
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

// The type of one item: a number, an enumeration, or a plain struct.
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
  // Encodes the text with its terminating zero. A null string differs from an empty string.
  void string(const char* text);

  bool ok() const { return ok_; }  // false: the body would exceed the limit
  size_t size() const { return size_; }
  std::span<const std::byte> body() const { return {data_, size_}; }

 private:
  // Appends `bytes` on an `alignment` boundary and returns their address. Returns null beyond the
  // limit; ok() is false from then on.
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

  // Returns zero after a failure.
  template <Encodable T>
  T value() {
    if constexpr (std::is_enum_v<T>) {
      // Not loaded as an enumeration: the peer's number may match none of its values.
      return static_cast<T>(value<std::underlying_type_t<T>>());
    } else {
      T item{};
      if (const std::byte* at = take(sizeof(T), kItemAlignment<T>)) {
        std::memcpy(&item, at, sizeof(T));
      }
      return item;
    }
  }
  // Points into the body. Empty after a failure. The driver API has no arrays whose elements need
  // more than 8-byte alignment.
  template <Encodable T>
  std::span<const T> array() {
    static_assert(alignof(T) <= kBodyAlignment);
    const uint32_t count = value<uint32_t>();
    if (count > size_ / sizeof(T)) return fail(), std::span<const T>();
    const std::byte* at = take(count * sizeof(T), kBodyAlignment);
    if (at == nullptr) return {};
    return {reinterpret_cast<const T*>(at), count};
  }
  // Points into the body and ends with a zero byte. Null for a null string and after a failure.
  const char* string();

  // For a reader that knows only the size and alignment of an item: skip() skips a struct;
  // skip_array() skips an array of structs and returns its count.
  void skip(size_t bytes, size_t alignment) {
    take(bytes, alignment < kBodyAlignment ? alignment : kBodyAlignment);
  }
  size_t skip_array(size_t item_bytes) {
    const uint32_t count = value<uint32_t>();
    if (count > size_ / item_bytes) return fail(), 0;
    return take(count * item_bytes, kBodyAlignment) == nullptr ? 0 : count;
  }

  // False if an item was truncated or out of bounds, or after reject().
  bool ok() const { return ok_; }
  // Whether every read was in bounds and no bytes are left over.
  bool complete() const { return ok_ && position_ == size_; }
  // Makes ok() and complete() return false: the caller has found a value that is in bounds but
  // invalid.
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
