// Command: a message of a client to its worker: an opcode, a body and the bytes after it.
//
// The body of a custom command (commands.h) names its opcode, so a body alone is a command:
// `post(route, wire::SignalBody{...})`, or `post(route, {body, tail})`. Generated commands have an
// opcode and an encoded body: `post(route, {opcode, encoder.body()})`. A Command refers to memory
// of its caller: use it only as a parameter.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "common/wire/commands.h"

namespace rcuda::wire {

template <typename T>
concept CommandBody = requires {
  { T::kOpcode } -> std::convertible_to<Custom>;
};
template <typename T>
concept CommandOpcode = std::same_as<T, uint16_t> ||
    (std::is_enum_v<T>&& std::same_as<std::underlying_type_t<T>, uint16_t>);

// Returns the bytes of a body; none if the body has no members.
template <typename Body>
std::span<const std::byte> body_bytes(const Body& body) {
  if constexpr (std::is_empty_v<Body>) {
    return {};
  } else {
    return std::as_bytes(std::span(&body, 1));
  }
}

struct Command {
  template <CommandBody Body>
  Command(const Body& of, std::span<const std::byte> after = {})
      : opcode(static_cast<uint16_t>(Body::kOpcode)), body(body_bytes(of)), tail(after) {}
  template <CommandOpcode Opcode>
  Command(Opcode number, std::span<const std::byte> encoded, std::span<const std::byte> after = {})
      : opcode(static_cast<uint16_t>(number)), body(encoded), tail(after) {}

  template <CommandBody Body>
  bool is() const {
    return opcode == static_cast<uint16_t>(Body::kOpcode);
  }

  uint16_t opcode;
  std::span<const std::byte> body, tail;
};

}  // namespace rcuda::wire
