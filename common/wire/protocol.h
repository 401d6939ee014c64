// The session protocol: the messages of a client process and its worker after their Link is made.
//
// Layout. The client writes commands into a ring in the worker's window (common/wire/ring.h). The
// worker writes into the client's window: the ring's credit, fixed words, completion words, reply
// slots, and a second ring of events (host callbacks, device output). All structs here are
// fixed-width, little-endian, 8-byte aligned, without pointers; sizes are asserted.
//
// One command = CommandHeader, then the opcode's body. Generated commands (api/table) encode their
// body with wire::Encoder; bodies of custom commands are plain structs, some followed by bytes.
// Custom commands are declared in api/table/commands.toml, from which common/wire/commands.h is
// generated.
//
// There are three ways to answer:
//  - reply slot: the worker writes [body ... | ReplyStamp]; the stamp is the slot's last word and
//    holds the length of the body. The body, padded to 8 bytes, ends right before the stamp.
//  - completion word: CompletionWord::make(sequence, result) reports the progress of a stream.
//  - none, for posted commands. A posted command that fails sets the session's error word.
//
// Data from the wire cannot be trusted: every count, offset, id and length is checked before use.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/wire/commands.h"
#include "common/wire/frame.h"

namespace rcuda::wire {

// ---- events: worker to client, in the event ring ----------------------------------------------

enum class Event : uint32_t {
  kHostCallback = 1,  // HostCallbackEvent
  kOutput = 2,        // OutputEvent + text
  kTrace = 3,         // TraceEvent[]
  kReady = 4,         // ReadyEvent
  kReleased = 5,      // ReleasedEvent
  kNotice = 6,        // NoticeEvent + text
};

struct EventHeader {
  Event event;
  uint32_t body_bytes;
};
static_assert(sizeof(EventHeader) == 8);

// The first event of a session.
struct ReadyEvent {
  EventHeader header;
  uint64_t staging_region;
  uint64_t staging_bytes;
  // The region of the GPU-written words, one u64 for each. The GPU may write a kSignal's sequence
  // into the u64 with the index of the completion word, before the worker writes the completion
  // word. 0: no such region.
  uint64_t marks_region;
  uint64_t marks_bytes;
  // The number of the worker's gates. At a gate, a copy in a stream of the first device's primary
  // context waits for the bytes that follow its command. Without a gate, a copy waits for them in a
  // host function.
  uint64_t gates;
};
static_assert(sizeof(ReadyEvent) == 48);

// The client runs callback `callback`, then writes `sequence` to WorkerWindow::kCallbackAcks[slot].
// With a loan (MirrorLoan), the regions of the lent mirrors hold the worker's bytes before the
// callback runs, and the client's bytes after it has run.
struct HostCallbackEvent {
  EventHeader header;
  uint64_t callback;
  uint64_t sequence;
  uint32_t slot;
  uint32_t status;  // CUresult, for stream callbacks
  uint64_t loan;    // MirrorLoan::number; 0: no mirror was lent
};
static_assert(sizeof(HostCallbackEvent) == 40);

// The worker lends the mirrors to a host function: it writes their bytes into the client's regions
// of these mirrors, and this struct after the bytes. The client answers in the same place.
struct MirrorLoan {
  // The number of the loan, from 1. It shows the client which regions have bytes of this loan. A
  // mirror that was made meanwhile, or whose transfer failed, has no bytes of this loan.
  uint64_t number;
  // The bytes include the mirror's patches up to this number (MirrorPatch).
  uint64_t patches;

  // The offset of this struct in the region of a mirror of `bytes` bytes.
  static constexpr uint64_t offset(uint64_t bytes) { return (bytes + 7) / 8 * 8; }
  static constexpr uint64_t region_bytes(uint64_t bytes) {
    return offset(bytes) + sizeof(MirrorLoan);
  }
};
static_assert(sizeof(MirrorLoan) == 16);

// The state of a mirror in an answer of the worker. The mirror's bytes in this answer include all
// patches up to the number `patches` (MirrorPatch) and the writes of the host function of the loan
// `loan`. They may also include later changes.
struct MirrorState {
  uint64_t patches, loan;
  // The number of this answer among the answers with bytes of this mirror; the client repeats it in
  // MirrorKnown. An answer without bytes has the number of the last answer with bytes. 0: no such
  // answer, or the worker does not record the client's bytes.
  uint64_t answer;
};
static_assert(sizeof(MirrorState) == 24);

// A mirror whose changes the client requests with MirrorNews.
struct MirrorKnown {
  uint64_t address;
  uint64_t answer;  // the last answer whose bytes the client has stored; 0: none
};
static_assert(sizeof(MirrorKnown) == 16);

// The part of a MirrorNews answer for one mirror. Its pieces follow.
struct MirrorNewsHead {
  MirrorState state;
  uint32_t pieces;     // each a MirrorPiece and its bytes, padded to 8
  uint32_t fetch_all;  // 1: the client must send MirrorFetch, because too many bytes differ, the
                       // mirror is too large, or the worker lacks the mirror or the client's answer
};
static_assert(sizeof(MirrorNewsHead) == 32);

struct MirrorPiece {
  uint32_t offset, bytes;
};
static_assert(sizeof(MirrorPiece) == 8);

// The most blocks of 4 KB in a MirrorPatch: bytes, marks and digests fit into a command.
inline constexpr uint32_t kMostPatchBlocks = 12;

// Consecutive blocks of a mirror that the GPU has changed (MirrorChanges).
struct MirrorRun {
  uint64_t first, count;
};
static_assert(sizeof(MirrorRun) == 16);

// No graph and no launch in progress uses the client's callback `callback` any more: the client may
// delete it. Sent once for each callback that reached a graph.
struct ReleasedEvent {
  EventHeader header;
  uint64_t callback;
};
static_assert(sizeof(ReleasedEvent) == 16);

// Output of a kernel. The client prints it on its own stdout or stderr.
struct OutputEvent {
  EventHeader header;
  uint32_t is_stderr;
  uint32_t text_bytes;
};
static_assert(sizeof(OutputEvent) == 16);

// A line of text about the session, which the client prints for the user.
struct NoticeEvent {
  static constexpr uint32_t kMostTextBytes = 1024;
  EventHeader header;
  uint32_t ends;  // 1: the server ends the session, and the text says why; 0: a warning
  uint32_t text_bytes;
};
static_assert(sizeof(NoticeEvent) == 16);

// The times of a command that was sent with kFlagTraced: its execution by the executor or, with
// kOnDevice, its work in a stream on the GPU. A command with a stream may have both events.
struct TraceEvent {
  static constexpr uint32_t kOnDevice = 1;
  uint64_t begin_ns, end_ns;  // worker's CLOCK_MONOTONIC
  uint64_t command;           // number of the command in the session, from 1
  uint16_t opcode;
  uint16_t thread;   // as in the command's header
  uint32_t flags;    // kOnDevice
  uint32_t context;  // kOnDevice: the context and stream of the work
  uint32_t stream;
};
static_assert(sizeof(TraceEvent) == 40);

}  // namespace rcuda::wire
