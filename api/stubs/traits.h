// What a command is: what the columns of api/table/README.md, "Traits", become. The generated
// api/traits.h has the traits of every opcode; those of an opcode that is none are the defaults
// here. Any thread; nothing blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <span>

namespace rcuda::api {

// What the worker does with the command while a stream is held for a copy between workers.
enum class WhileHeld : uint8_t {
  kWaits,   // a driver may wait for the device in it: it waits until no stream is held
  kAsks,    // as kWaits or kQueues; a function of the worker's looks at the command
  kQueues,  // queues work: it runs while the device has room for one more busy stream
  kPasses,  // needs no room: it runs
};
enum class Queues : uint8_t {
  kWork,       // afterwards a stream may have more to do, or memory may be gone
  kIfItHolds,  // only when it holds the stream; the worker's handler counts that itself
  kNothing,
};
enum class Frees : uint8_t {
  kNothing,
  kAtOnce,    // the device memory at the address with which the body begins
  kInStream,  // the same when the stream gets there
  kContext,   // all that a context has
};

struct CommandTraits {
  // Offsets in a custom command's body are of 32-bit members (`sequence`: 64 bits).
  static constexpr uint16_t kNone = 0xffff;

  WhileHeld while_held = WhileHeld::kWaits;
  Queues queues = Queues::kWork;
  Frees frees = Frees::kNothing;
  bool waits_for_device = false;  // a driver returns only when the device is idle
  bool holds_stream = false;      // at times; see holds_stream() below
  uint16_t body_bytes = 0;        // of a custom command, what follows the body left out
  uint16_t word = kNone;          // the completion word that it signals, whatever happens
  uint16_t sequence = kNone;      // and the value
  uint16_t device_work = kNone;   // the stream in which the device does what a trace shows
  uint16_t link = kNone;          // of what holds a stream: the other worker
  uint16_t flags = kNone;         // it holds one if `hold_flag` is set here; none: always
  uint32_t hold_flag = 0;

  constexpr bool signals() const { return word != kNone; }
};

// A member of a body that a peer sent; nothing where it has none, or is too short.
template <typename T = uint32_t>
std::optional<T> member(std::span<const std::byte> body, uint16_t offset) {
  T value;
  if (offset == CommandTraits::kNone || body.size() < sizeof value ||
      body.size() - sizeof value < offset) {
    return std::nullopt;
  }
  std::memcpy(&value, body.data() + offset, sizeof value);
  return value;
}

// Whether this command makes what follows in its stream wait for another worker.
inline bool holds_stream(const CommandTraits& traits, std::span<const std::byte> body) {
  if (!traits.holds_stream) return false;
  if (traits.flags == CommandTraits::kNone) return true;
  return (member(body, traits.flags).value_or(0) & traits.hold_flag) != 0;
}

}  // namespace rcuda::api
