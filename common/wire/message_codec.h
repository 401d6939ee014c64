// MessageWriter and MessageReader: the bodies of the handshake's messages (handshake.h,
// lease_messages.h): numbers in the machine's order, strings and lists with their length before
// them.
//
// Plain values; one thread. Nothing blocks. Errors: a reader keeps its first failure; malformed()
// is what a decoder then returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/base/printable.h"
#include "common/base/status.h"

namespace rcuda::wire {

// Limits of what a message may claim to contain, all far above real messages.
inline constexpr uint32_t kMaxString = 4096;
inline constexpr uint32_t kMaxDevices = 1024;

class MessageWriter {
 public:
  template <typename T>
  void number(T value) {
    static_assert(std::is_integral_v<T>);
    bytes(&value, sizeof value);
  }
  void flag(bool value) { number(static_cast<uint8_t>(value)); }
  void bytes(const void* data, size_t count) {
    const auto* from = static_cast<const std::byte*>(data);
    out_.insert(out_.end(), from, from + count);
  }
  void string(std::string_view text) {
    text = text.substr(0, kMaxString);
    number(static_cast<uint32_t>(text.size()));
    bytes(text.data(), text.size());
  }
  template <typename T>
  void numbers(const std::vector<T>& values) {
    number(static_cast<uint32_t>(values.size()));
    for (T value : values) number(value);
  }
  std::vector<std::byte> take() { return std::move(out_); }

 private:
  std::vector<std::byte> out_;
};

// Every read is limited to the bytes that are left. After the first failure all reads fail.
class MessageReader {
 public:
  explicit MessageReader(const std::vector<std::byte>& in)
      : at_(in.data()), end_(in.data() + in.size()) {}

  bool flag(bool* value) {
    uint8_t number_read = 0;
    if (!number(&number_read) || number_read > 1) return fail();
    *value = number_read == 1;
    return true;
  }
  bool bytes(void* to, size_t count) {
    if (failed_ || static_cast<size_t>(end_ - at_) < count) return fail();
    if (count) std::memcpy(to, at_, count);
    at_ += count;
    return true;
  }
  template <typename T>
  bool number(T* value) {
    static_assert(std::is_integral_v<T>);
    return bytes(value, sizeof *value);
  }
  bool string(std::string* text) {
    uint32_t count = 0;
    if (!number(&count) || count > kMaxString || count > left()) return fail();
    text->resize(count);
    return bytes(text->data(), count);
  }
  // A string that is shown to people. Characters that could control a terminal are replaced
  // (printable.h).
  bool text(std::string* text) {
    if (!string(text)) return false;
    make_printable(*text);
    return true;
  }
  // The length of a list. It must not exceed `limit`, nor the bytes left divided by `item_bytes`,
  // the least size of an item, so a short message cannot cause a large allocation.
  bool count(uint32_t* count, uint32_t limit, size_t item_bytes) {
    if (!number(count) || *count > limit || *count > left() / item_bytes) return fail();
    return true;
  }
  template <typename T>
  bool numbers(std::vector<T>* values, uint32_t limit) {
    uint32_t n = 0;
    if (!count(&n, limit, sizeof(T))) return false;
    values->resize(n);
    return bytes(values->data(), n * sizeof(T));
  }
  // Rejects a value that is in bounds but invalid. Returns false.
  bool fail() {
    failed_ = true;
    return false;
  }
  bool complete() const { return !failed_ && at_ == end_; }

 private:
  size_t left() const { return static_cast<size_t>(end_ - at_); }

  const std::byte* at_;
  const std::byte* end_;
  bool failed_ = false;
};

inline Status malformed(const char* message) {
  return Status(Code::kProtocol, std::string("the peer sent a malformed ") + message +
                                     " message: it is not rcuda, or of another version");
}

}  // namespace rcuda::wire
