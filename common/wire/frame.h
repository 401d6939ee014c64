// What all messages of a session share: the layout of the windows, a command's header, object ids,
// and the enumerations, limits and structs used in bodies of custom commands
// (api/table/commands.toml).
//
// All structs here are fixed-width, little-endian, 8-byte aligned and without pointers; their sizes
// are asserted.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/wire/ring.h"

namespace rcuda::wire {

// ---- windows -----------------------------------------------------------------------------------

// The layout of the worker's window: words that the client writes, then the command ring.
struct WorkerWindow {
  static constexpr uint64_t kCallbackAcks = 4096;  // u64[kCallbackSlots]: see HostCallbackEvent
  static constexpr uint32_t kCallbackSlots = 1024;
  static constexpr uint64_t kEventRingConsumed = 2048;     // u64, see ring.h
  static constexpr uint64_t kCommandRingWant = 2048 + 64;  // u64, see ring.h
  static constexpr uint64_t kCommandRing = 64u << 10;
  static constexpr uint64_t kCommandRingBytes = 4u << 20;
  static constexpr uint64_t kBytes = kCommandRing + kCommandRingBytes;
};

// The layout of the client's window: words and slots that the worker writes, then the event ring.
struct ClientWindow {
  static constexpr uint64_t kCommandRingConsumed = 2048;  // u64, see ring.h
  static constexpr uint64_t kEventRingWant = 2048 + 64;   // u64, see ring.h
  // u64: CompletionWord::make(number, result) of the latest error of posted commands or
  // asynchronous work; 0: none. A sticky error stays until its context is reset, which sets the
  // result to 0.
  static constexpr uint64_t kErrorWord = 2048 + 128;
  // u64: 0 while the session is awake. While it is parked or about to be parked, a number that is
  // new for each park.
  static constexpr uint64_t kParkWord = 2048 + 192;
  static constexpr uint64_t kCompletionWords = 64u << 10;  // u64[kCompletionCount]
  static constexpr uint32_t kCompletionCount = 32768;
  static constexpr uint64_t kSmallReplies = kCompletionWords + 8ull * kCompletionCount;
  static constexpr uint32_t kSmallReplyCount = 1024;
  static constexpr uint32_t kSmallReplyBytes = 512;  // including the stamp
  static constexpr uint64_t kLargeReplies =
      kSmallReplies + 1ull * kSmallReplyCount * kSmallReplyBytes;
  static constexpr uint32_t kLargeReplyCount = 64;
  static constexpr uint32_t kLargeReplyBytes = 64u << 10;
  // The words and replies that calls wait for. The thread that reads events does not wait for them.
  static constexpr transport::WindowPart kAnswers{
      kCompletionWords,
      kLargeReplies + 1ull * kLargeReplyCount* kLargeReplyBytes - kCompletionWords};
  static constexpr uint64_t kEventRing = kLargeReplies + 1ull * kLargeReplyCount * kLargeReplyBytes;
  static constexpr uint64_t kEventRingBytes = 1u << 20;
  static constexpr uint64_t kBytes = kEventRing + kEventRingBytes;
};

inline constexpr RingLayout kCommandRingLayout{
    WorkerWindow::kCommandRing, WorkerWindow::kCommandRingBytes, WorkerWindow::kCommandRingWant,
    ClientWindow::kCommandRingConsumed};
inline constexpr RingLayout kEventRingLayout{
    ClientWindow::kEventRing, ClientWindow::kEventRingBytes, ClientWindow::kEventRingWant,
    WorkerWindow::kEventRingConsumed};

// Progress of a stream or event, as the worker reports it. The sequence of a word only grows.
struct CompletionWord {
  static constexpr uint64_t make(uint64_t sequence, uint32_t result) {
    return (sequence << 16) | (result & 0xffff);
  }
  static constexpr uint64_t sequence(uint64_t word) { return word >> 16; }
  static constexpr uint32_t result(uint64_t word) { return word & 0xffff; }  // a CUresult
};

// Last word of a reply slot. `call` is never 0, so a zeroed slot is not a reply.
struct ReplyStamp {
  static constexpr uint64_t make(uint32_t call, uint32_t body_bytes) {
    return (static_cast<uint64_t>(call) << 32) | body_bytes;
  }
  static constexpr uint32_t call(uint64_t stamp) { return static_cast<uint32_t>(stamp >> 32); }
  static constexpr uint32_t body_bytes(uint64_t stamp) { return static_cast<uint32_t>(stamp); }
};

// First bytes of every reply body.
struct ReplyHeader {
  uint32_t result;  // CUresult
  uint32_t reserved;
};
static_assert(sizeof(ReplyHeader) == 8);

// ---- commands ----------------------------------------------------------------------------------

enum CommandFlags : uint16_t {
  kFlagNone = 0,
  kFlagTraced = 1,  // the worker records when this command begins and ends, for RCUDA_TRACE
};

struct CommandHeader {
  uint16_t opcode;
  uint16_t flags;
  uint32_t context;      // id of the context that the command runs in; 0: none
  uint32_t call;         // repeated in the reply's stamp; 0: posted, no reply
  uint32_t reply_slot;   // byte offset of the slot in the client's window
  uint32_t reply_bytes;  // size of that slot: kSmallReplyBytes or kLargeReplyBytes
  uint32_t thread;       // the client's thread, numbered from 1 by the client
};
static_assert(sizeof(CommandHeader) == 24);

inline constexpr uint32_t kMaxCommandBytes = 60u << 10;  // header included
// The most bytes of a copy, an image or a mirror that travel in one command.
inline constexpr uint32_t kMaxInlineBytes = 56u << 10;

// Object ids. The client assigns the ids of objects that it creates, dense from 1 per kind, and
// reuses them after the (ordered) destroy. Objects that only the worker can name (nodes of a
// captured graph, a kernel's function) get ids with kWorkerMinted set. 0 means "no object" (for
// streams: the legacy default stream).
enum class Kind : uint8_t {
  kNone = 0,
  kContext,
  kStream,
  kEvent,
  kModule,
  kFunction,
  kLibrary,
  kKernel,
  kGraph,
  kGraphNode,
  kGraphExec,
  kMemoryPool,
  kArray,
  kMipmappedArray,
  kTexture,
  kSurface,
  kLinkState,
  kUserObject,
  kAllocation,  // CUmemGenericAllocationHandle
  kTextureReference,
  kSurfaceReference,
  kCount
};
using ObjectId = uint32_t;
inline constexpr ObjectId kWorkerMinted = 0x8000'0000u;
inline constexpr ObjectId kMaxObjectId = 1u << 24;

// Primary contexts exist from the start: context id = device ordinal (of the worker) + 1.
inline constexpr ObjectId primary_context_id(uint32_t device) { return device + 1; }
inline constexpr ObjectId kFirstCreatedContext = 1024;

// Stream 0 is the legacy default stream. Per-thread default streams are ordinary streams that the
// client creates when a thread first uses one. kFetchStream is the worker's own stream in each
// context. It moves bytes of mirrored memory, both ways, concurrently with the program's streams.
inline constexpr ObjectId kFetchStream = 0x7fff'ffffu;

// ---- parts of bodies of custom commands --------------------------------------------------------

// Flags of copies from or to client memory that has a shadow in the worker.
enum CopyFlags : uint32_t {
  // Nothing queued before the copy can change the source: its bytes may be fetched before the
  // stream reaches the copy.
  kSourceReady = 1,
  // This side of the copy is mirrored, and the client has sent its changes. The copy uses the
  // shadow's bytes; no bytes are moved between client and worker.
  kSourceMirrored = 2,
  kDestinationMirrored = 4,
};

// Why the client watches an event (WatchEvent in api/table/commands.toml).
enum class WatchFor : uint32_t { kReport = 0, kWait = 1, kQuery = 2 };

enum class MemoryType : uint32_t { kUnified = 0, kHost = 1, kDevice = 2, kArray = 3 };

struct CopyShapeSide {
  uint64_t address;  // kArray: an array's ObjectId
  uint64_t pitch_bytes;
  uint64_t height;  // rows per slice
  uint64_t x_bytes, y, z, lod;
  MemoryType type;
  uint32_t context;  // 0 unless this is a peer copy
};
static_assert(sizeof(CopyShapeSide) == 64);

// An option of the JIT compiler (CUjit_option) whose value is a number.
struct JitOption {
  uint32_t key, reserved;
  uint64_t value;
};
static_assert(sizeof(JitOption) == 16);

// The length of the text that the driver has written into a log buffer, and the driver's value of
// the option for the buffer's size. Both are zero if the application has no such buffer.
struct JitLog {
  uint32_t text_bytes;  // without a terminator
  uint32_t size_value;
};
struct JitLogs {
  JitLog info, error;
  uint32_t wall_time;  // the value of CU_JIT_WALL_TIME: a float in place of a pointer
  uint32_t reserved;
};
static_assert(sizeof(JitLogs) == 24);

inline constexpr uint32_t kMaxParameterBytes = 32764;  // CUDA 12.1's limit for sm_70 and later
inline constexpr uint32_t kMaxLaunchAttributes = 32;

inline constexpr uint32_t kFunctionAttributeCount = 32;  // FunctionInfoReply
struct ParameterInfo {
  uint32_t offset_bytes, size_bytes;
};
static_assert(sizeof(ParameterInfo) == 8);

// A worker that has only a shadow of page-locked memory splits copies of this memory into parts. A
// part is a quarter of the copy, from 1 MiB to 4 MiB: small enough that network and DMA engine work
// mostly at the same time, large enough that the stream's waits between parts cost little.
constexpr uint64_t part_bytes_of(uint64_t copy_bytes) {
  constexpr uint64_t kLeast = 1u << 20, kMost = 4u << 20, kPage = 4096;
  const uint64_t quarter = (copy_bytes / 4 + kPage - 1) / kPage * kPage;
  return quarter < kLeast ? kLeast : quarter > kMost ? kMost : quarter;
}
constexpr uint64_t parts_of(uint64_t copy_bytes) {
  const uint64_t part = part_bytes_of(copy_bytes);
  return copy_bytes / part + (copy_bytes % part != 0);
}

// The immediate of the part that comes `index` parts after the part with the immediate `first`.
// Cycles through 1 to 2^32 - 1; 0 means no immediate.
constexpr uint32_t immediate_of(uint32_t first, uint64_t index) {
  return static_cast<uint32_t>((first - 1 + index) % UINT32_MAX) + 1;
}

enum PeerCopyFlags : uint32_t {
  kPeerOutgoing = 1,     // this worker's half is the sender
  kPeerInStream = 2,     // the copy has a place in `stream` of this worker
  kPeerHolds = 4,        // later work in the stream waits for the copy
  kPeerOtherStream = 8,  // outgoing: the other half has a place in a stream too
  // An error of the copy becomes an asynchronous error of this session. Both halves get the error,
  // so at most one half has this flag: in an asynchronous copy, the half whose stream waits for the
  // copy; in a copy by a node of a graph, the destination's half. No half has the flag if the
  // program's call waits for the copy, or if the waiting stream belongs to a third worker. If the
  // worker refuses the half, it reports the error at once. Any other error is reported when the
  // half's stream is released (DeviceOps::release), or at the copy's end if the half has no stream.
  kPeerReports = 16,
  // The PeerSignal that names the copy carries its error to another worker. That worker's session
  // reports the error.
  kPeerSignalled = 32,
};

}  // namespace rcuda::wire
