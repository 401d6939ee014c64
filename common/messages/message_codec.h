// Three visitors of a message's fields: one encodes, one decodes, one describes the layout. A
// message's source file lists the fields and instantiates the codec:
//
//   template <typename Visitor>
//   void fields(Visitor& visit, Attach& m) {
//     visit.bytes("token", m.token);
//     visit.number("index", m.index);
//   }
//   template struct Codec<Attach>;
//
// The header declares the instance (extern template), and the struct has kName, for errors. A
// struct in a list also has fields(). Numbers are in the machine's byte order; a length precedes
// each string and list.
//
// Plain values; one thread. Nothing blocks. Errors: a reader keeps its first failure.
#pragma once

#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/printable.h"
#include "common/base/status.h"
#include "common/messages/forms.h"
#include "common/messages/message.h"

namespace rcuda::wire {

// Limits of lengths and counts in messages, all far above real messages.
inline constexpr uint32_t kMaxString = 4096;
inline constexpr uint32_t kMaxDevices = 1024;

// The limits of a text's length, in bytes.
struct TextLimits {
  size_t least = 0, most = kMaxString;
};

template <typename T>
concept Number =
    (std::integral<T> && !std::same_as<T, bool>) || std::same_as<T, std::chrono::nanoseconds>;

// Visits an item of a list. Items have no names.
template <typename Visitor, typename Item>
void visit_item(Visitor& visit, Item& item) {
  if constexpr (Number<Item>) {
    visit.number("", item);
  } else if constexpr (std::same_as<Item, std::string>) {
    visit.text("", item);
  } else if constexpr (requires { std::tuple_size<Item>::value; }) {  // std::array
    visit.bytes("", item);
  } else {
    fields(visit, item);
  }
}

class MessageWriter {
 public:
  static constexpr bool kReads = false;

  template <Number T>
  void number(const char* /*name*/, const T& value) {
    append(std::as_bytes(std::span(&value, 1)));
  }
  void flag(const char* name, bool value) { number(name, static_cast<uint8_t>(value)); }
  template <typename Enum>
  void choice(const char* name, Enum value, std::span<const char* const> /*values*/) {
    number(name, static_cast<uint32_t>(value));
  }
  void bytes(const char* /*name*/, std::span<const uint8_t> data) { append(std::as_bytes(data)); }
  void string(const char* name, std::string_view text, uint32_t limit = kMaxString) {
    text = text.substr(0, limit);
    number(name, static_cast<uint32_t>(text.size()));
    append(std::as_bytes(std::span(text)));
  }
  void text(const char* name, const std::string& text, TextLimits = {}) { string(name, text); }
  template <typename Item>
  void list(const char* name, std::vector<Item>& items, uint32_t /*limit*/) {
    number(name, static_cast<uint32_t>(items.size()));
    for (Item& item : items) visit_item(*this, item);
  }
  template <typename Item>
  void optional(const char* name, std::optional<Item>& item) {
    flag(name, item.has_value());
    if (item) visit_item(*this, *item);
  }
  template <typename Struct>
  void object(const char* /*name*/, Struct& object) {
    fields(*this, object);
  }
  // Writes another message, preceded by its length, inside this message.
  template <typename Message>
  void message(const char* name, const Message& message) {
    const std::vector<std::byte> body = encode(message);
    number(name, static_cast<uint32_t>(body.size()));
    append(body);
  }
  void check(bool /*valid*/) {}

  void append(std::span<const std::byte> bytes) {
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  std::vector<std::byte> take() { return std::move(out_); }

 private:
  std::vector<std::byte> out_;
};

// The shortest encoding of an item of a list, in bytes: its strings and lists are empty.
template <typename Item>
size_t least_bytes() {
  static const size_t bytes = [] {
    MessageWriter out;
    Item item{};
    visit_item(out, item);
    return out.take().size();
  }();
  return bytes;
}

// Every read is limited to the bytes that are left. After the first failure all reads fail.
class MessageReader {
 public:
  static constexpr bool kReads = true;

  explicit MessageReader(const std::vector<std::byte>& in)
      : at_(in.data()), end_(in.data() + in.size()) {}

  template <Number T>
  void number(const char* /*name*/, T& value) {
    take(std::as_writable_bytes(std::span(&value, 1)));
  }
  void flag(const char* name, bool& value) {
    uint8_t byte = 0;
    number(name, byte);
    if (byte > 1) return fail();
    value = byte == 1;
  }
  template <typename Enum>
  void choice(const char* name, Enum& value, std::span<const char* const> values) {
    uint32_t index = 0;
    number(name, index);
    if (index == 0 || index > values.size()) return fail();
    value = static_cast<Enum>(index);
  }
  void bytes(const char* /*name*/, std::span<uint8_t> data) { take(std::as_writable_bytes(data)); }
  void string(const char* name, std::string& text, uint32_t limit = kMaxString) {
    uint32_t count = 0;
    number(name, count);
    if (failed_ || count > limit || count > left()) return fail();
    text.resize(count);
    take(std::as_writable_bytes(std::span(text)));
  }
  // Characters that could control a terminal are replaced (printable.h).
  void text(const char* name, std::string& text, TextLimits limits = {}) {
    string(name, text);
    make_printable(text);
    check(text.size() >= limits.least && text.size() <= limits.most);
  }
  // The number of items must not exceed `limit`, and the bytes that are left must have room for
  // this number of smallest items. So a short message cannot cause a large allocation.
  template <typename Item>
  void list(const char* name, std::vector<Item>& items, uint32_t limit) {
    uint32_t count = 0;
    number(name, count);
    if (failed_ || count > limit || count > left() / least_bytes<Item>()) return fail();
    items.resize(count);
    for (Item& item : items) visit_item(*this, item);
  }
  template <typename Item>
  void optional(const char* name, std::optional<Item>& item) {
    bool present = false;
    flag(name, present);
    if (present) visit_item(*this, item.emplace());
  }
  template <typename Struct>
  void object(const char* /*name*/, Struct& object) {
    fields(*this, object);
  }
  template <typename Message>
  void message(const char* name, Message& message) {
    uint32_t count = 0;
    number(name, count);
    if (failed_ || count > left()) return fail();
    std::vector<std::byte> body(count);
    take(body);
    Result<Message> decoded = decode<Message>(body);
    if (!decoded.ok()) return fail();
    message = std::move(decoded).value();
  }
  // Makes decoding fail if `valid` is false. For rules that the limits of single fields cannot
  // express.
  void check(bool valid) {
    if (!valid) fail();
  }

  bool complete() const { return !failed_ && at_ == end_; }

 private:
  void take(std::span<std::byte> to) {
    if (failed_ || left() < to.size()) return fail();
    if (!to.empty()) std::memcpy(to.data(), at_, to.size());
    at_ += to.size();
  }
  void fail() { failed_ = true; }
  size_t left() const { return static_cast<size_t>(end_ - at_); }

  const std::byte* at_;
  const std::byte* end_;
  bool failed_ = false;
};

// Writes the layout of a message: names, types and limits.
class MessageLayout {
 public:
  static constexpr bool kReads = false;

  template <Number T>
  void number(const char* name, const T&) {
    add(name, (std::signed_integral<T> ? "i" : "u") + std::to_string(8 * sizeof(T)));
  }
  void flag(const char* name, bool) { add(name, "flag"); }
  template <typename Enum>
  void choice(const char* name, Enum, std::span<const char* const> values) {
    std::string all;
    for (const char* value : values) all.append(all.empty() ? "" : ",").append(value);
    add(name, "choice(" + all + ")");
  }
  void bytes(const char* name, std::span<const uint8_t> data) {
    add(name, "bytes[" + std::to_string(data.size()) + "]");
  }
  void string(const char* name, std::string_view, uint32_t limit = kMaxString) {
    add(name, "string[" + std::to_string(limit) + "]");
  }
  void text(const char* name, const std::string&, TextLimits limits = {}) {
    add(name, "text[" + std::to_string(limits.least) + ".." + std::to_string(limits.most) + "]");
  }
  template <typename Item>
  void list(const char* name, std::vector<Item>&, uint32_t limit) {
    add(name, "list[" + std::to_string(limit) + "]" + layout_of<Item>());
  }
  template <typename Item>
  void optional(const char* name, std::optional<Item>&) {
    add(name, "optional" + layout_of<Item>());
  }
  template <typename Struct>
  void object(const char* name, Struct&) {
    add(name, layout_of<Struct>());
  }
  template <typename Message>
  void message(const char* name, const Message&) {
    add(name, Codec<Message>::layout());
  }
  void check(bool) {}

  std::string take() { return "{" + text_ + "}"; }

 private:
  void add(const char* name, const std::string& type) {
    if (!text_.empty()) text_ += ',';
    text_.append(name).append(":").append(type);
  }
  template <typename Item>
  static std::string layout_of() {
    MessageLayout layout;
    Item item{};
    visit_item(layout, item);
    return layout.take();
  }

  std::string text_;
};

inline Status malformed(const char* message) {
  return Status(Code::kProtocol, std::string("the peer sent a malformed ") + message +
                                     " message: the peer is not rcuda, or another build of rcuda; "
                                     "install the same build on both sides");
}

// Messages with a form (forms.h) have a constant kForm.
template <typename Message>
concept HasForm = requires {
  Message::kForm;
};

template <typename Message>
std::vector<std::byte> Codec<Message>::encode(const Message& message) {
  MessageWriter out;
  if constexpr (HasForm<Message>) out.number("form", form_of(Message::kForm));
  fields(out, const_cast<Message&>(message));  // the writer changes nothing
  return out.take();
}

template <typename Message>
Result<Message> Codec<Message>::decode(const std::vector<std::byte>& body) {
  MessageReader in(body);
  if constexpr (HasForm<Message>) RCUDA_RETURN_IF_ERROR(read_form(in, Message::kForm));
  Message message;
  fields(in, message);
  if (!in.complete()) return malformed(Message::kName);
  return message;
}

template <typename Message>
const std::string& Codec<Message>::layout() {
  // Never destroyed: the client library must register no exit handler.
  static const auto* const text = [] {
    MessageLayout layout;
    Message message;
    fields(layout, message);
    return new std::string(Message::kName + layout.take());
  }();
  return *text;
}

}  // namespace rcuda::wire
