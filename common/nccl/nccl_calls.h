// Calls of NCCL as a client sends them to its worker, in the commands NcclCalls, NcclPart and
// NcclPost (api/table/commands.toml). Plain values. The receiver must check every value.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/nccl/nccl_api.h"

namespace rcuda::nccl {

// The numbers are permanent. The comments explain the members of Call that do not have the name of
// NCCL's parameter, and the tail. "creates": the call makes a communicator.
enum class Verb : uint16_t {
  kInit = 1,    // `count` ranks, `peer` this rank; the tail has the ids; creates
  kSplit = 2,   // `peer` the color, `value` the key; creates
  kShrink = 3,  // `value` flags; the tail has the excluded ranks; creates
  kFinalize = 4,
  kDestroy = 5,
  kAbort = 6,
  kAllReduce = 7,
  kReduce = 8,
  kBroadcast = 9,
  kAllGather = 10,
  kReduceScatter = 11,
  kAlltoAll = 12,
  kGather = 13,
  kScatter = 14,
  kSend = 15,
  kReceive = 16,
  kPreMulSum = 17,  // `value` the residence; `source` the scalar's address, or the tail has it
  kDestroyOperation = 18,
  kRegister = 19,    // `source` the address, `count` bytes; answers with the handle
  kDeregister = 20,  // `source` the handle
  kRevoke = 21,      // `value` flags
  kSuspend = 22,     // `value` flags
  kResume = 23,
  // `count` ranks, `peer` this rank, `source` and `target` the id's IdMark::tag and parent_tag, the
  // tail an id or none; creates
  kGrow = 24,
  kRegisterWindow = 25,  // `source` address, `count` bytes, `value` flags; answers with the window
  kDeregisterWindow = 26,  // `source` the window
  kPutSignal = 27,         // `target` the window; the tail is a PutTail
  kSignal = 28,            // the tail is a PutTail
  kWaitSignal = 29,        // the tail has SignalWaits
  // Creates a device communicator; the tail is a DeviceTail; answers with its number.
  kCreateDevice = 30,
  kDestroyDevice = 31,  // `source` the device communicator's number
};
// Whether the call goes to a stream. The tail of kAllReduce to kScatter may be an OperationTail.
inline constexpr bool is_operation(Verb verb) {
  return (verb >= Verb::kAllReduce && verb <= Verb::kReceive) ||
         (verb >= Verb::kPutSignal && verb <= Verb::kWaitSignal);
}
inline constexpr bool creates(Verb verb) { return verb <= Verb::kShrink || verb == Verb::kGrow; }
// Whether NCCL never returns kInProgress for the call.
inline constexpr bool is_immediate(Verb verb) {
  return verb == Verb::kDestroy || verb == Verb::kAbort ||
         (verb >= Verb::kPreMulSum && verb <= Verb::kDeregister) || verb == Verb::kDestroyDevice;
}
// Whether the worker returns an Answer for the call.
inline constexpr bool is_answered(Verb verb) {
  return creates(verb) || verb == Verb::kPreMulSum || verb == Verb::kRegister ||
         verb == Verb::kRegisterWindow || verb == Verb::kCreateDevice;
}

// How the worker makes the calls of a batch (NcclCalls::grouped).
enum class Grouping : uint32_t {
  kSingle = 0,
  kGroup = 1,
  kSimulated = 2,  // only estimates the time of the operations
};

struct Call {
  Verb verb{};
  uint16_t reserved = 0;
  uint32_t communicator = 0;  // the client's id
  uint32_t created = 0;       // the client's id of the new communicator
  uint32_t stream = 0;        // 0: the legacy default stream of `context`
  uint32_t context = 0;       // current for the call
  uint32_t tail_bytes = 0;    // the tail follows this struct, padded to 8 bytes
  uint64_t source = 0, target = 0, count = 0;
  int32_t datatype = 0, operation = 0;
  int32_t peer = 0;  // a peer's rank, or the root's rank
  int32_t value = 0;
};
static_assert(sizeof(Call) == 64);

// The tail of calls that create a communicator begins with this struct. The unique ids (kInit,
// kGrow) or the excluded ranks (kShrink) follow, and after these the two strings of the Config.
struct CreateTail {
  uint32_t list_bytes = 0;
  uint16_t net_name_bytes = 0, comm_name_bytes = 0;  // 0: none
  uint32_t has_config = 0;
  uint32_t reserved = 0;
  Config config;  // its pointers are null
};
static_assert(sizeof(CreateTail) == 136);

struct OperationTail {
  uint32_t event = 0;  // the client's id of the launch event; 0: none
  uint32_t algorithm_bytes = 0;
  OperationConfig config;  // its pointers are null
  // The algorithms follow.
};
static_assert(sizeof(OperationTail) == 80);

struct PutTail {
  uint64_t offset = 0;
  int32_t signal = 0, context = 0;
  uint32_t flags = 0, reserved = 0;
};

// The tail of kCreateDevice begins with this struct. The program's requirements follow, padded to 8
// bytes, then the elements of their two lists, with null pointers.
struct DeviceTail {
  uint32_t requirement_bytes = 0;
  uint32_t lists_at = 0;  // the offset of the two list pointers in the requirements
  uint32_t resources = 0, teams = 0;
};

// The results of NCCL for a DeviceResource.
struct MadeResource {
  uint32_t buffer = 0, first_signal = 0, first_counter = 0, reserved = 0;
};

// The worker's answer to a call that is_answered(). Answers are in the order of their calls.
struct Answer {
  // After a registration: the handle or window. After kCreateDevice: the device communicator's
  // number.
  uint64_t value = 0;
  int32_t ranks = 0;  // of a new communicator; 0: none was created
  int32_t rank = 0;   // of this worker; after kPreMulSum: the operation
};

// The questions of NcclAsk. The executor thread answers kDeviceCommunicator and the questions
// before kFirstOfThreads. Threads of NcclCallers answer the others.
enum class Question : uint32_t {
  kAsyncError = 1,
  kLastError = 2,  // the text is the error; communicator 0: the library's last error
  kMemory = 3,     // `value`: the statistic, as for ncclCommMemStats
  kUniqueId = 4,   // for ranks that will join: the text is the id
  kFirstOfThreads = 5,
  kProperties = 5,  // the tail is the program's struct; the text is this struct, filled in
  // `value`: the device communicator's number. The text: the size of the program's
  // ncclDevComm as a uint64_t, its bytes padded to 8, a MadeResource for each resource and a
  // Multimem for each team.
  kDeviceCommunicator = 6,
  kTeam = 7,  // `value`: TeamOf, `other`: its mode; the text is a Team
  // The address of `offset` in `window`. The question's `value` is an AddressOf, its tail a
  // WindowTail. The answer's `value` is the address, except for logical endpoints (AddressOf).
  kWindowAddress = 8,
  kRequirement = 9,  // `value`: RequirementOf; the tail is a RequirementTail; see MadeRequirement
  kSlots = 10,       // the answer's `error`: the result of ncclLLA2ACalcSlots(value, other)
  kParameter = 11,   // `value`: ParameterType; the tail is the key
  kParameterKeys = 12,  // the text: keys, each with a zero after it
  kDumpParameters = 13,
};

enum class TeamOf : int32_t { kLsa, kRail, kCft, kCftMultimem };
enum class AddressOf : int32_t {
  kLsaMultimem,
  kMultimem,
  kLsa,
  kPeer,
  // For logical endpoints, the answer's `error` is the endpoint, and `value` the offset.
  kMultimemElement,
  kCftElement,
  kPeerElement,
};
struct WindowTail {
  int32_t peer = 0;
  Team team{};
  Multimem multimem{};
};

enum class RequirementOf : int32_t {
  kLsaBarrier,
  kCftBarrier,
  kGinBarrier,
  kGinInbox,
  kGinOutbox,
  kLowLatency,
};
struct RequirementTail {
  Team team{};
  int32_t numbers[2] = {};  // the other arguments of the function, in their order
};
// The text of the answer begins with this struct. The handle's bytes follow.
struct MadeRequirement {
  static constexpr uint64_t kNull = ~uint64_t{0};
  DeviceResource resource{};
  // Where the pointers of `resource` point to, as offsets in the handle.
  uint64_t buffer_at = kNull, first_signal_at = kNull, first_counter_at = kNull;
};

enum class ParameterType : int32_t {
  kNone,  // no value: only asks whether the parameter exists
  kI8,
  kI16,
  kI32,
  kI64,
  kU8,
  kU16,
  kU32,
  kU64,
  kString,  // ncclParamGetStr
  kBytes,   // ncclParamGet
  kText,    // ncclParamGetParameter
};

inline constexpr size_t kMostCommunicators = 1024;  // of a session
inline constexpr size_t kMostJobs = 256;            // calls of a session that wait for other ranks
inline constexpr size_t kMostNameBytes = 1024;
inline constexpr size_t kMostPskBytes = 4096;
// The largest struct of NCCL's device API that may be sent, and the most elements of one list.
inline constexpr size_t kMostStructBytes = 8192;
inline constexpr size_t kMostListItems = 1024;

// The end of a unique id that a worker has made. NCCL leaves these bytes unused.
struct IdMark {
  static constexpr uint64_t kMagic = 0x6c63636e61647563;  // "cudanccl"
  // For an id from ncclCommGetUniqueId. `tag`: the tag (server/executor/nccl/batch.h) of the
  // communicator that ncclCommGrow will make with this id. `parent_tag`: the tag of the
  // communicator that grows. 0: unknown.
  uint64_t tag = 0, parent_tag = 0;
  uint64_t magic = kMagic;
  int32_t version = 0;  // of the NCCL that made the id
  uint32_t reserved = 0;
};
inline constexpr size_t kIdMarkOffset = sizeof(UniqueId) - sizeof(IdMark);

}  // namespace rcuda::nccl
