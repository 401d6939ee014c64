// The session protocol: what a client process and its worker say to one another once a Link stands.
//
// Layout. The client writes commands into a ring in the worker's window (common/wire/ring.h). The
// worker writes into the client's window: the ring's credit, fixed words, completion words, reply
// slots, and a second ring of events (host callbacks, device output). All structs here are
// fixed-width, little-endian, 8-byte aligned, without pointers; sizes are asserted.
//
// One command = CommandHeader, then the opcode's body. Generated commands (api/table) encode their
// body with wire::Encoder; bodies of custom ones are plain structs, some followed by bytes. They
// are declared in api/table/commands.toml, from which common/wire/commands.h is generated.
//
// Answers come in three ways, and no other:
//  - reply slot: the worker writes [body ... | ReplyStamp] so that the stamp is the slot's last
//    word; the body's length is in the stamp, and it ends right before it, 8-byte aligned;
//  - completion word: CompletionWord::make(sequence, result), for "has the stream got there?";
//  - nothing: posted commands. A posted command that fails sets the session's error word.
//
// Anything read from the wire is hostile: every count, offset, id and length is checked before use.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/wire/commands.h"
#include "common/wire/frame.h"

namespace rcuda::wire {

// Of the handshake's framing. Two sides whose declarations differ in anything else refuse one
// another by Hello::api_hash, for which nobody has to raise a number.
inline constexpr uint32_t kProtocolVersion = 2;

// ---- events: worker to client, in the event ring ----------------------------------------------

enum class Event : uint32_t {
  kHostCallback = 1,  // HostCallbackEvent
  kOutput = 2,        // OutputEvent + text
  kTrace = 3,         // TraceEvent[]
  kReleased = 5,      // ReleasedEvent; 4 is the handshake's kReadyEvent
};

struct EventHeader {
  Event event;
  uint32_t body_bytes;
};
static_assert(sizeof(EventHeader) == 8);

// The client runs callback `callback`, then writes `sequence` to WorkerWindow::kCallbackAcks[slot].
// With `mirrored`, the regions of all mirrors hold the worker's bytes first, and the client's when
// the callback has run.
struct HostCallbackEvent {
  EventHeader header;
  uint64_t callback;
  uint64_t sequence;
  uint32_t slot;
  uint32_t status;  // CUresult, for stream callbacks
  uint32_t mirrored;
  uint32_t reserved;
};
static_assert(sizeof(HostCallbackEvent) == 40);

// No graph holds what the client named `callback` any more, and no launch that is under way: it may
// be forgotten. Sent once for each that reached a graph.
struct ReleasedEvent {
  EventHeader header;
  uint64_t callback;
};
static_assert(sizeof(ReleasedEvent) == 16);

// What a kernel printed; printed by the client on its own stdout or stderr.
struct OutputEvent {
  EventHeader header;
  uint32_t is_stderr;
  uint32_t text_bytes;
};
static_assert(sizeof(OutputEvent) == 16);

// What became of a command that was sent with kFlagTraced: its execution by the executor, or, with
// a stream, what the GPU did for it.
struct TraceEvent {
  static constexpr uint32_t kOnDevice = 1;
  uint64_t begin_ns, end_ns;  // worker's CLOCK_MONOTONIC
  uint64_t command;           // the session's commands, counted from 1
  uint16_t opcode;
  uint16_t thread;   // as in the command's header
  uint32_t flags;    // kOnDevice
  uint32_t context;  // and the stream in it, for work on a device
  uint32_t stream;
};
static_assert(sizeof(TraceEvent) == 40);

}  // namespace rcuda::wire
