// The messages between the daemon and its workers. Each is a struct; the limits of its fields bound
// its size. A struct with a member `descriptor` travels with a descriptor. A receiver refuses a
// message with another number of descriptors.
//
//   to a worker     descriptor                    handled by
//   LedgerMemory    the Ledger of the session's   worker_process.cpp, before a session
//                   next allowance
//   WorkMemory      the session's WorkPage        worker_process.cpp
//   SessionStart    the client's socket           worker_process.cpp
//   FurtherSocket   the client's next socket      daemon_listener.cpp, during the session
//   PeerCall        the socket of another worker  worker_session.cpp
//                   of that client
//   ExportCall      the socket of another worker  worker_session.cpp
//                   of that user
//   RanksLost       none                          worker_session.cpp
//   ParkStep        none                          session_park.cpp
//   StopRequest     none                          worker_process.cpp before the session,
//                                                 daemon_listener.cpp during the session
//
//   to the daemon   meaning                       handled by
//   WorkerReady     its driver has started        WorkerPool::read_start()
//   StartFailure    it ends without a session     WorkerPool::read_start()
//   ParkAnswer      to a ParkStep, or a wish to   WorkerPool::read_park()
//                   wake or for room (parker.h)
//   SessionTotals   its session is over           WorkerPool::read()
//
// The daemon sends its messages over a sequenced-packet socket. A worker sends its messages as
// reports through a pipe (reports.h). If the daemon dies, the socket ends, and the worker ends its
// session and exits. Neither side has more than a few messages in flight. A worker that does not
// read (in a debugger, or flooded by a client) does not block the daemon, which sends without
// waiting.
//
// The daemon starts its workers from /proc/self/exe, which remains the daemon's own file when an
// upgrade replaces the file at its path. Another build may take the daemon's place during a
// session, but only if its messages have the same layout (server/daemon/carried). So messages carry
// no version.
//
// Threads: any; only one thread reads a socket. Blocking and errors: as the functions say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "common/base/socket_io.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/messages/export_messages.h"
#include "common/messages/handshake.h"
#include "common/messages/server_status.h"
#include "server/protocol/session_grant.h"

namespace rcuda::server {

struct LedgerMemory {
  UniqueFd descriptor;
};

struct WorkMemory {
  UniqueFd descriptor;
};

struct SessionStart {
  SessionGrant grant;
  wire::Hello hello;
  uint8_t token[16] = {};  // the session's token, for Welcome
  uint32_t peeked = 0;     // as in PassedSocket
  UniqueFd descriptor{};
};

template <typename Introduction>
struct PassedSocket {
  Introduction introduction;  // the first message on the socket
  // The daemon has read this many bytes without taking them from the socket (closer.h).
  // receive_from_daemon() takes them.
  uint32_t peeked = 0;
  UniqueFd descriptor{};
};
using FurtherSocket = PassedSocket<wire::Attach>;
using PeerCall = PassedSocket<wire::PeerHello>;
using ExportCall = PassedSocket<wire::ExportQuery>;

// Another worker has died. It had ranks of these NCCL communicators (WorkPage::communicators()).
struct RanksLost {
  std::vector<uint64_t> tags{};
};

// A step of parking (server/worker/parker.h).
struct ParkStep {
  enum class What : uint32_t {
    kRest = 1,
    kParked = 2,
    kStay = 3,
    kWake = 4,
    kAwake = 5,
    kMove = 6,
    kSuspend = 7,
    kPlace = 8,
    kPlaceBack = 9,
    kRoom = 10,
  };
  static constexpr size_t kMostTags = 8192;
  What what{};
  // kMove of a parked worker: the page-locked bytes that it may keep. kRest: the milliseconds that
  // its work may take to end. kRoom: the daemon's answer to a ParkAnswer about room (parker.h).
  uint64_t keep = 0;
  // kSuspend: for each rank of the sessions that are parked together, the tag of its communicator
  // (WorkPage::communicators()).
  std::vector<uint64_t> tags{};
  std::vector<uint32_t> devices{};  // kPlace, kPlaceBack: the devices, in the session's order
};

struct StopRequest {
  std::string why{};  // for the session's client and the audit; empty: the worker has no session
};

// The driver and devices of a ready worker, for the daemon's log line and its checks.
struct WorkerReady {
  std::string driver;  // "CUDA 13.0 by /usr/lib/x86_64-linux-gnu/libcuda.so.1"
  std::vector<wire::ServerStatus::Device> devices;
  // A device's names, which do not depend on the driver's numbers (DeviceScope).
  struct Identity {
    std::string uuid, pci_bus_id;
  };
  std::vector<Identity> identities;
  std::string warning;        // a failure that the daemon logs once; empty: none
  std::string driver_path{};  // the path of the driver's file
  uint32_t driver_version = 0;
  // The version and the path of the NCCL of sessions, or why it is missing. Empty unless the daemon
  // has asked for it (kAskNcclVariable).
  std::string nccl{};
  std::vector<uint32_t> ordinals() const;
};

struct StartFailure {
  std::string reason;
  bool lasts = false;     // is_lasting() (start_failure.h)
  std::string setting{};  // the key of the setting that is the reason; empty: another reason
  // The device that has no memory for the worker's context; kNoDevice: another reason.
  static constexpr uint32_t kNoDevice = ~0u;
  uint32_t full_device = kNoDevice;
};

struct ParkAnswer {
  enum class What : uint32_t {
    kAtRest = 1,
    kBusy = 2,
    kCannot = 3,
    kWakeWanted = 4,
    kMoved = 5,
    kNotMoved = 6,
    kSuspended = 7,
    kPlaced = 8,
    kRoomWanted = 9,
    kRoomUsed = 10,
    kRoomAsked = 11,
  };
  What what{};
  std::string why{};
  // kAtRest: the bytes that the worker itself can move, by device in the session's order. Empty:
  // the driver must park the session. kRoomWanted, kRoomAsked: the device, then numbers of bytes
  // (parker.h).
  std::vector<uint64_t> bytes{};
};

// A worker's report at the end of its session. The daemon does not trust it.
struct SessionTotals {
  wire::Work work;
  std::string outcome;
};

using ToWorker = std::variant<LedgerMemory, WorkMemory, SessionStart, FurtherSocket, PeerCall,
                              ExportCall, RanksLost, ParkStep, StopRequest>;
using ToDaemon = std::variant<WorkerReady, StartFailure, ParkAnswer, SessionTotals>;

// If this environment variable is set, the worker reports the NCCL library of sessions.
inline constexpr char kAskNcclVariable[] = "RCUDA_WORKER_ASK_NCCL";
// With this value of the variable, a worker fails if the setting names a library that the worker
// cannot use. The daemon sets this value for workers that it starts during its own start.
inline constexpr char kCheckNccl[] = "check";

inline constexpr size_t kMostWorkerMessageBytes = 96u << 10;

// Encodes and decodes a message of either direction, without its descriptor. The message's type
// comes first. Decoding returns kProtocol for bytes that are not an encoded message.
template <typename Any>
std::vector<std::byte> encode_message(const Any& message);
template <typename Any>
Result<Any> decode_message(std::span<const std::byte> bytes);
// The names, types, order and limits of the fields of all messages of both directions.
std::string worker_messages_layout();

// Sends a message. `descriptor`: its descriptor, which stays the caller's; -1: it has none. Blocks
// while the worker does not read; kTimeout at the deadline. kInvalidArgument if the message is too
// long.
Status send_to_worker(int socket, const ToWorker& message, int descriptor, Deadline deadline);
// Blocks until a packet has arrived. kUnavailable at the end of the socket, kSystem if a descriptor
// was lost.
Result<ToWorker> receive_from_daemon(int socket);

}  // namespace rcuda::server
