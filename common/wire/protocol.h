// The session protocol: what a client process and its worker say to one another once a Link stands.
//
// Layout. The client writes commands into a ring in the worker's window (common/wire/ring.h). The
// worker writes into the client's window: the ring's credit, fixed words, completion words, reply
// slots, and a second ring of events (host callbacks, device output). All structs here are
// fixed-width, little-endian, 8-byte aligned, without pointers; sizes are asserted.
//
// One command = CommandHeader, then the opcode's body. Generated commands (api/table) encode their
// body with wire::Encoder; the custom ones below are plain structs, some followed by bytes. Opcodes
// below kFirstGenerated belong to this file, the others to api/table.
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

#include "common/wire/ring.h"

namespace rcuda::wire {

// Of the handshake's framing. Two sides whose declarations differ in anything else refuse one
// another by Hello::api_hash, for which nobody has to raise a number.
inline constexpr uint32_t kProtocolVersion = 2;

// ---- windows -----------------------------------------------------------------------------------

// The worker's window: words the client writes, then the command ring.
struct WorkerWindow {
  static constexpr uint64_t kCallbackAcks = 4096;  // u64[kCallbackSlots]: see HostCallbackEvent
  static constexpr uint32_t kCallbackSlots = 1024;
  static constexpr uint64_t kEventRingConsumed = 2048;     // u64, see ring.h
  static constexpr uint64_t kCommandRingWant = 2048 + 64;  // u64, see ring.h
  static constexpr uint64_t kCommandRing = 64u << 10;
  static constexpr uint64_t kCommandRingBytes = 4u << 20;
  static constexpr uint64_t kBytes = kCommandRing + kCommandRingBytes;
};

// The client's window: words and slots the worker writes, then the event ring.
struct ClientWindow {
  static constexpr uint64_t kCommandRingConsumed = 2048;  // u64, see ring.h
  static constexpr uint64_t kEventRingWant = 2048 + 64;   // u64, see ring.h
  // u64: CompletionWord::make(count, result) of the latest asynchronous error; 0: none yet. A
  // sticky error stays until its context is reset (then: result 0).
  static constexpr uint64_t kErrorWord = 2048 + 128;
  static constexpr uint64_t kCompletionWords = 64u << 10;  // u64[kCompletionCount]
  static constexpr uint32_t kCompletionCount = 32768;
  static constexpr uint64_t kSmallReplies = kCompletionWords + 8ull * kCompletionCount;
  static constexpr uint32_t kSmallReplyCount = 1024;
  static constexpr uint32_t kSmallReplyBytes = 512;  // stamp included
  static constexpr uint64_t kLargeReplies =
      kSmallReplies + 1ull * kSmallReplyCount * kSmallReplyBytes;
  static constexpr uint32_t kLargeReplyCount = 64;
  static constexpr uint32_t kLargeReplyBytes = 64u << 10;
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

// A stream's or event's progress, as the worker reports it. Sequences of one word only grow.
struct CompletionWord {
  static constexpr uint64_t make(uint64_t sequence, uint32_t result) {
    return (sequence << 16) | (result & 0xffff);
  }
  static constexpr uint64_t sequence(uint64_t word) { return word >> 16; }
  static constexpr uint32_t result(uint64_t word) { return word & 0xffff; }  // a CUresult
};

// Last word of a reply slot. `call` never is 0, so a zeroed slot is no reply.
struct ReplyStamp {
  static constexpr uint64_t make(uint32_t call, uint32_t body_bytes) {
    return (static_cast<uint64_t>(call) << 32) | body_bytes;
  }
  static constexpr uint32_t call(uint64_t stamp) { return static_cast<uint32_t>(stamp >> 32); }
  static constexpr uint32_t body_bytes(uint64_t stamp) { return static_cast<uint32_t>(stamp); }
};

// First bytes of every reply body.
struct ReplyHeader {
  uint32_t result;         // CUresult
  uint32_t events_before;  // device output events published before this reply (wraps): a client
                           // that returns from a synchronising call first prints that many
};
static_assert(sizeof(ReplyHeader) == 8);

// ---- commands ----------------------------------------------------------------------------------

enum CommandFlags : uint16_t {
  kFlagNone = 0,
  kFlagTraced = 1,  // the worker records begin and end of this command for RCUDA_TRACE
};

struct CommandHeader {
  uint16_t opcode;
  uint16_t flags;
  uint32_t context;      // ContextId current in the calling thread; 0: none
  uint32_t call;         // echoed in the reply's stamp; 0: posted, nobody waits
  uint32_t reply_slot;   // byte offset of the slot in the client's window
  uint32_t reply_bytes;  // size of that slot: kSmallReplyBytes or kLargeReplyBytes
  uint32_t thread;       // the client's thread, numbered from 1 by the client
};
static_assert(sizeof(CommandHeader) == 24);

inline constexpr uint32_t kMaxCommandBytes = 60u << 10;  // header included
inline constexpr uint32_t kMaxInlineBytes = 56u << 10;   // a copy in a command has no more

// Object ids. The client mints ids of what it creates, dense from 1 per kind, and reuses them after
// the (ordered) destroy. Objects that only the worker can name (nodes of a captured graph, a
// kernel's function) get ids with kWorkerMinted set. 0 is "no object" (for streams: the legacy
// default stream).
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
  kGreenContext,
  kExternal,
  kCount
};
using ObjectId = uint32_t;
inline constexpr ObjectId kWorkerMinted = 0x8000'0000u;
inline constexpr ObjectId kMaxObjectId = 1u << 24;

// Primary contexts exist from the start: context id = device ordinal (of the worker) + 1.
inline constexpr ObjectId primary_context_id(uint32_t device) { return device + 1; }
inline constexpr ObjectId kFirstCreatedContext = 1024;

// Stream 0 is the legacy default stream. Per-thread default streams are ordinary streams
// that the client creates when a thread first uses one.

enum class Custom : uint16_t {
  kInvalid = 0,
  kPing,                // call; empty body, empty reply
  kSignal,              // post; SignalBody: completion word when the stream gets there
  kWatchEvent,          // post; WatchEventBody
  kSynchronizeContext,  // post; SignalBody with stream ignored: all work of the command's context
  kCopyInline,          // post; CopyInlineBody + bytes: host bytes to device memory
  kCopyToReply,    // call; CopyToReplyBody: device memory to the reply, when the stream got there
  kCopyStaged,     // post; CopyStagedBody: between device memory and the staging region
  kCopy,           // post; CopyBody: both addresses are valid in the worker; may signal
  kCopyShape,      // post; CopyShapeBody: 2D and 3D, both sides valid in the worker
  kLaunch,         // post; LaunchBody + parameters + attributes
  kLaunchHost,     // post; LaunchHostBody
  kImageQuery,     // call; ImageQueryBody -> ImageQueryReply
  kImageChunk,     // post; ImageChunkBody (+ bytes when not staged)
  kModuleLoad,     // call; ModuleLoadBody
  kLibraryLoad,    // call; ModuleLoadBody
  kFunctionInfo,   // call; FunctionInfoBody -> FunctionInfoReply + ParameterInfo[] + attributes
  kHostExpose,     // call; HostExposeBody: pinned client memory becomes usable at its address
  kHostUnexpose,   // call; HostUnexposeBody
  kMirror,         // call; MirrorBody: host-visible memory that client and worker keep alike
  kUnmirror,       // call; MirrorFetchBody
  kMirrorFetch,    // call; MirrorFetchBody: what it holds now, into the client's region
  kSessionEnd,     // post; clean end
  kFault,          // call; FaultBody: tests only (server must run with --allow-faults)
  kPeerIntroduce,  // post; PeerIntroduceBody + host: another worker of this client
  kPeerCopy,       // post; PeerCopyBody: this worker's half of a copy between two workers
  kPeerSignal,     // post; PeerSignalBody: another worker's stream waits for this place
  kPeerAwait,      // post; PeerSignalBody: this stream waits for the other worker's signal
  kPeerPlan,       // call; PeerPlanBody -> PeerPlanReply + text: how a copy would go
  kFirstGenerated = 0x100,
};

struct SignalBody {
  uint32_t stream;
  uint32_t word;  // index of the completion word
  uint64_t sequence;
};
static_assert(sizeof(SignalBody) == 16);

// The word gets `sequence` when the event's latest record at this point of the command order is
// done. `waits`: whatever becomes of the event. Otherwise, for who asks now and then: never if the
// event is destroyed or recorded again before, or watched in this way again.
struct WatchEventBody {
  uint32_t event;
  uint32_t word;
  uint64_t sequence;
  uint32_t waits;
  uint32_t reserved;
};
static_assert(sizeof(WatchEventBody) == 24);

struct CopyInlineBody {
  uint64_t destination;
  uint32_t bytes;
  uint32_t stream;
};  // then `bytes` bytes
static_assert(sizeof(CopyInlineBody) == 16);

struct CopyToReplyBody {
  uint64_t source;
  uint32_t bytes;
  uint32_t stream;
};
static_assert(sizeof(CopyToReplyBody) == 16);

// The staging region (ReadyEvent, Welcome::staging_bytes) belongs to the worker, is page-locked,
// and is divided up by the client. The word gets `sequence` when the DMA is done: then the slot is
// free (to device) or filled (to host).
struct CopyStagedBody {
  uint64_t device_address;
  uint64_t staging_offset;
  uint64_t bytes;
  uint32_t stream;
  uint32_t to_device;  // 1: staging to device memory; 0: device memory to staging
  uint32_t word;
  uint32_t reserved;
  uint64_t sequence;
};
static_assert(sizeof(CopyStagedBody) == 48);

// cuMemcpyAsync / cuMemcpyPeerAsync between addresses of the worker: device memory, or client
// memory exposed by kHostExpose (same address in the worker). Without a common mapping (tcp, verbs)
// the worker moves the bytes over the Link when the stream gets there.
struct CopyBody {
  uint64_t destination;
  uint64_t source;
  uint64_t bytes;
  uint32_t stream;
  uint32_t destination_context;  // 0 unless a peer copy
  uint32_t source_context;
  uint32_t flags;  // CopyFlags
  uint32_t word;
  uint32_t reserved;
  uint64_t sequence;  // 0: no signal
};
static_assert(sizeof(CopyBody) == 56);
// Of sides that are client memory which the worker has a shadow of.
enum CopyFlags : uint32_t {
  // Nothing in front of the copy can still change the source: its bytes may be fetched before the
  // stream gets there.
  kSourceReady = 1,
  // The side is mirrored, and the client has sent what it changed: the shadow's bytes are the ones
  // to read, or to write, and none are moved.
  kSourceMirrored = 2,
  kDestinationMirrored = 4,
};

enum class MemoryType : uint32_t { kUnified = 0, kHost = 1, kDevice = 2, kArray = 3 };

struct CopyShapeSide {
  uint64_t address;  // kArray: an array's ObjectId
  uint64_t pitch_bytes;
  uint64_t height;  // rows per slice
  uint64_t x_bytes, y, z, lod;
  MemoryType type;
  uint32_t context;  // 0 unless a peer copy
};
static_assert(sizeof(CopyShapeSide) == 64);

// CUDA_MEMCPY3D_PEER with both sides valid in the worker. Host sides that are pageable are packed
// by the client into the staging region first (and unpacked after), so kHost here is a staging
// offset when `*_staged` is set, exposed memory otherwise.
struct CopyShapeBody {
  CopyShapeSide destination;
  CopyShapeSide source;
  uint64_t width_bytes, height, depth;
  uint32_t stream;
  uint16_t destination_staged;  // 0 or 1
  uint16_t source_staged;       // 0 or 1
  uint32_t word;
  uint32_t flags;     // CopyFlags, kSourceReady excepted
  uint64_t sequence;  // 0: no signal
};
static_assert(sizeof(CopyShapeBody) == 176);

// cuLaunchKernel, cuLaunchKernelEx and cuLaunchCooperativeKernel. Parameters are packed as the
// kernel wants them (FunctionInfo), attributes are CUlaunchAttribute as in cuda.h, with event
// handles replaced by ids.
struct LaunchBody {
  uint32_t function;  // Kind::kFunction, or Kind::kKernel when is_kernel
  uint32_t stream;
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;
  uint32_t parameter_bytes;  // follow the body, padded to 8
  uint16_t attribute_count;  // then so many CUlaunchAttribute
  uint8_t is_kernel;
  uint8_t cooperative;
  uint8_t as_array;  // in a capture: the node's parameters are to read back as an array of pointers
  uint8_t reserved[3];
};
static_assert(sizeof(LaunchBody) == 48);
inline constexpr uint32_t kMaxParameterBytes = 32764;  // CUDA 12.1's limit for sm_70 and later
inline constexpr uint32_t kMaxLaunchAttributes = 32;

// The worker's stream reaches the function: it publishes a HostCallbackEvent and holds the stream
// until the client writes the ack word.
struct LaunchHostBody {
  uint64_t callback;  // the client's name for it
  uint32_t stream;
  uint32_t is_stream_callback;  // 1: runs also after an error, and gets the status
};
static_assert(sizeof(LaunchHostBody) == 16);

// Images travel once: the client asks by SHA-256, sends what is missing, then loads by hash.
struct ImageQueryBody {
  uint8_t sha256[32];
  uint64_t bytes;
};
static_assert(sizeof(ImageQueryBody) == 40);
struct ImageQueryReply {
  ReplyHeader header;
  uint32_t present;  // 1: in the cache, nothing to send
  uint32_t reserved;
};
static_assert(sizeof(ImageQueryReply) == 16);
struct ImageChunkBody {
  uint8_t sha256[32];
  uint64_t offset;
  uint64_t staging_offset;  // ~0: the bytes follow inline, and nothing is signalled
  uint32_t bytes;
  uint32_t word;  // staged chunks: signalled when the staging memory is free again
  uint64_t sequence;
};
static_assert(sizeof(ImageChunkBody) == 64);

// cuModuleLoadData(Ex) / cuLibraryLoadData. Several images make one -rdc=true program (wrapper
// version 2). JIT options that carry a value are passed on; log buffers come back in the reply.
struct ModuleLoadBody {
  uint32_t object;        // Kind::kModule or Kind::kLibrary, minted by the client
  uint32_t image_count;   // then image_count sha256[32]
  uint32_t option_count;  // then option_count {u32 CUjit_option, u32 reserved, u64 value}
  uint32_t info_log_bytes, error_log_bytes;  // capacities asked for; bounded by the reply slot
  uint32_t library_option_count;             // then {u32 CUlibraryOption, u32 reserved, u64 value}
};
static_assert(sizeof(ModuleLoadBody) == 24);
struct ModuleLoadReply {
  ReplyHeader header;
  uint32_t info_log_bytes, error_log_bytes;  // then the info log, then the error log
};
static_assert(sizeof(ModuleLoadReply) == 16);

// Everything the client wants to know of a function or kernel, in one round trip.
struct FunctionInfoBody {
  uint32_t object;     // id the client minted for the function or kernel
  uint32_t owner;      // module or library it is looked up in
  uint16_t is_kernel;  // 0: cuModuleGetFunction(owner), 1: cuLibraryGetKernel(owner)
  uint16_t name_bytes;
  uint32_t reserved;
};  // then the name
static_assert(sizeof(FunctionInfoBody) == 16);
inline constexpr uint32_t kFunctionAttributeCount = 32;
struct FunctionInfoReply {
  ReplyHeader header;
  uint32_t parameter_count;  // then parameter_count ParameterInfo
  uint32_t reserved;
  int32_t attributes[kFunctionAttributeCount];  // by CUfunction_attribute; INT32_MIN: not supported
};
static_assert(sizeof(FunctionInfoReply) == 144);
struct ParameterInfo {
  uint32_t offset_bytes, size_bytes;
};
static_assert(sizeof(ParameterInfo) == 8);

// Pinned client memory. On shared memory the region has backing: the worker maps it at `address`
// and registers it with CUDA. Elsewhere the worker makes page-locked memory of its own there.
struct HostExposeBody {
  uint64_t address;
  uint64_t bytes;
  uint64_t region;  // transport::RegionId
  uint32_t flags;   // CU_MEMHOSTREGISTER_*
  uint32_t has_backing;
  uint64_t callback;  // not 0: stands for pageable memory in a graph's copy. The client's callback
                      // fills it before the copy reads it, or empties it after it was written
};
static_assert(sizeof(HostExposeBody) == 40);
struct HostUnexposeBody {
  uint64_t address;
  uint64_t region;
};
static_assert(sizeof(HostUnexposeBody) == 16);

// Memory of the worker at `address` that the client has a copy of. `region` is where the worker
// puts its bytes for the client to compare: at its begin around host functions, at `fetch_offset`
// when asked (kMirrorFetch).
struct MirrorBody {
  uint64_t address;
  uint64_t bytes;
  uint64_t region;  // transport::RegionId
  uint64_t fetch_offset;
};
static_assert(sizeof(MirrorBody) == 32);
struct MirrorFetchBody {
  uint64_t address;
};
static_assert(sizeof(MirrorFetchBody) == 8);

struct FaultBody {
  uint32_t kind;  // 1: exit at once, 2: abort, 3: stop answering
  uint32_t reserved;
};
static_assert(sizeof(FaultBody) == 8);

// ---- copies between workers (p2p/engine.h) ------------------------------------------------------

// Gives two workers the same token and tells one of them where the other's server listens. `link`
// is the client's name for the connection, the same in both, never used twice.
struct PeerIntroduceBody {
  uint32_t link;
  uint32_t worker;      // the other: Hello::worker
  uint8_t token[32];    // the secret by which they know one another
  uint32_t connects;    // 1: this worker connects to the other's server; 0: it is called on
  uint16_t port;        // of that server
  uint16_t host_bytes;  // then so many bytes: its host
};
static_assert(sizeof(PeerIntroduceBody) == 48);

enum PeerCopyFlags : uint32_t {
  kPeerOutgoing = 1,     // this worker has the source
  kPeerInStream = 2,     // the copy has a place in `stream` of this worker
  kPeerHolds = 4,        // and what follows in the stream waits for the copy
  kPeerOtherStream = 8,  // outgoing: the other half has a place in a stream as well
};

// Both halves have one id. The word, if there is one, gets `sequence` when this half is over.
struct PeerCopyBody {
  uint64_t id;
  uint32_t link;
  uint32_t flags;
  uint32_t device;       // of this worker
  uint32_t peer_device;  // of the other
  uint64_t address;
  uint64_t width_bytes, height, depth;
  uint64_t pitch_bytes, slice_bytes;
  uint32_t stream;
  uint32_t word;
  uint64_t sequence;  // 0: no word
};
static_assert(sizeof(PeerCopyBody) == 88);

struct PeerSignalBody {
  uint64_t id;  // the same in the signal and in what awaits it
  uint32_t link;
  uint32_t place;  // a stream; kPeerSignal with `is_event`: an event, whose latest record counts
  uint32_t is_event;
  uint32_t reserved;
};
static_assert(sizeof(PeerSignalBody) == 24);

struct PeerPlanBody {
  uint64_t bytes;
  uint32_t link;
  uint32_t device;       // of this worker, which has the source
  uint32_t peer_device;  // of the other
  uint32_t reserved;
};
static_assert(sizeof(PeerPlanBody) == 24);
struct PeerPlanReply {
  ReplyHeader header;
  double predicted_us;  // 0: no prediction
  uint32_t measured;    // 0: the legs are still being measured
  uint32_t text_bytes;  // then the plan and its reason, as text
};
static_assert(sizeof(PeerPlanReply) == 24);

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
