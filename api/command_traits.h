// The traits of a command: the columns in section "Traits" of api/table/README.md. The generated
// api/traits.h has them for every opcode; an unknown opcode has the defaults below. Any thread;
// nothing blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <span>

namespace rcuda::api {

// How the worker treats the command while a stream is held for a copy between workers. In this
// time, the worker executes at most 256 commands.
enum class WhileHeld : uint8_t {
  kWaits,   // waits until no stream is held, because the driver may wait for the device
  kAsks,    // as kWaits or as kQueues: the worker's X_may_wait() decides for each command X
  kQueues,  // queues work: runs while the device has room for one more busy stream
  kPasses,  // runs, even if the device has no room for one more busy stream
};
// Whether the command may queue work or free memory. After such a command, the worker discards what
// it knows about idle streams and existing memory.
enum class Queues : uint8_t {
  kWork,       // yes: a stream may have more work, or memory may be gone
  kIfItHolds,  // only if the command holds its stream, which the worker's handler reports
  kAnswered,   // yes until the command is answered, then no
  kNothing,    // no
};
// The device memory that the command frees.
enum class Frees : uint8_t {
  kNothing,
  kAtOnce,    // the memory at the address with which the body begins
  kInStream,  // the same memory, when the stream reaches the command
  kContext,   // all memory of a context
};

struct CommandTraits {
  // `word`, `sequence`, `device_work`, `link` and `flags` are offsets of members in a custom
  // command's body. The members have 32 bits, that of `sequence` 64. kNone: no such member.
  static constexpr uint16_t kNone = 0xffff;

  WhileHeld while_held = WhileHeld::kWaits;
  Queues queues = Queues::kWork;
  Frees frees = Frees::kNothing;
  bool waits_for_device = false;  // the driver returns only when the device is idle
  bool any_context = false;       // executed even if its context is not valid
  bool overtaken = false;         // a later WatchEvent may run before the command
  bool holds_stream = false;      // always or sometimes: holds_stream() decides
  uint16_t body_bytes = 0;        // custom commands: size of the body without its tail
  uint16_t word = kNone;          // the completion word that the command always signals
  uint16_t sequence = kNone;      // the value of that word
  uint16_t device_work = kNone;   // the stream whose device work a trace shows
  uint16_t link = kNone;  // of a command that holds a stream: the connection to the other worker
  // With `holds_stream`: the command holds its stream if the member at `flags` has the bit
  // `hold_flag`. kNone: it always does.
  uint16_t flags = kNone;
  uint32_t hold_flag = 0;

  constexpr bool signals() const { return word != kNone; }
};

// Reads a member of a peer's body; nullopt if the command has no such member or the body ends
// early.
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

// Whether this command makes later work in its stream wait for another worker.
inline bool holds_stream(const CommandTraits& traits, std::span<const std::byte> body) {
  if (!traits.holds_stream) return false;
  if (traits.flags == CommandTraits::kNone) return true;
  return (member(body, traits.flags).value_or(0) & traits.hold_flag) != 0;
}

}  // namespace rcuda::api
