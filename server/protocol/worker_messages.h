// Messages between the daemon and its workers. Both ends are the same binary, so they are plain
// structs. To a worker they go over a sequenced-packet socket, from a worker as reports through a
// pipe (reports.h).
//
// worker -> daemon   kReady or kFailed, once; kEnded, when a session is over, with index 1 if the
//                    worker could serve another one; kClean, when it can. The daemon believes
//                    nothing of what kEnded says of the session
// daemon -> worker   kLedger (+ the memory of a Ledger), one for each allowance of the session;
//                    kWork (+ the memory of a WorkPage);
//                    kSession (+ the client's socket, then the encoded SessionStart);
//                    kAttach (+ a further socket of that client); kPeer (+ the socket of another
//                    worker of that client, then its PeerHello); kLookup (+ the socket of another
//                    worker of that user, then its ExportQuery); kStop (+ why, if it is for this
//                    session only); kClean, after kEnded: make yourself clean for another session,
//                    for which ledgers, page and session come again
// If the daemon dies, the socket ends, and the worker ends its session and exits. Neither side has
// more than a few messages in flight. A worker that does not read (in a debugger, or flooded by a
// client) does not block the daemon, whose deadline for sending is now.
// Threads: any; only one thread reads a socket. Blocking and errors: as the functions say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/socket_io.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/messages/server_status.h"

namespace rcuda::server {

enum class WorkerMessageType : uint32_t {
  kReady = 1,
  kFailed,
  kSession,
  kAttach,
  kPeer,
  kStop,
  kEnded,
  kLedger,
  kWork,
  kClean,
  kLookup
};

struct WorkerMessage {
  WorkerMessageType type{};
  // kAttach: index of the stream; kEnded: 1 if the worker waits for an answer; kFailed: see `body`
  uint32_t index = 0;
  uint8_t token[16] = {};  // kSession: for Welcome
  // kSession, kAttach, kPeer, kLookup: the daemon has read this many bytes, which are still at the
  // beginning of the socket (closer.h). receive_worker_message() takes them.
  uint32_t peeked = 0;
  // kSession: the SessionStart; kPeer: the PeerHello; kLookup: the ExportQuery; kReady:
  // WorkerReady; kFailed: the reason, with index 1 if it is lasting (start_failure.h); kEnded:
  // SessionTotals; kStop: why the session ends, empty if the server stops
  std::vector<std::byte> body;
  UniqueFd descriptor;  // kSession, kAttach, kPeer, kLookup, kLedger, kWork
};

inline constexpr size_t kMaxWorkerMessageBytes = 96u << 10;

// Blocks until the deadline while the other process does not read; then kTimeout.
Status send_worker_message(int socket, const WorkerMessage& message, Deadline deadline);
// Blocks until a packet has arrived. kUnavailable at the end of the socket.
Result<WorkerMessage> receive_worker_message(int socket);

// The driver and devices of a ready worker, for the daemon's log line and its checks.
struct WorkerReady {
  static constexpr char kName[] = "worker's offer";
  std::string driver;  // "CUDA 13.0 by /usr/lib/x86_64-linux-gnu/libcuda.so.1"
  std::vector<wire::ServerStatus::Device> devices;
  // Of each of the devices: what names it whatever the driver's numbers are (DeviceScope).
  struct Identity {
    std::string uuid, pci_bus_id;
  };
  std::vector<Identity> identities;
  std::string warning;  // what the worker could not do, which the daemon says once; empty: nothing
  std::string driver_path{};  // of its file
  uint32_t driver_version = 0;
  std::vector<uint32_t> ordinals() const;
};
// What a worker says of its session when that ends, for the audit.
struct SessionTotals {
  static constexpr char kName[] = "totals";
  wire::Work work;
  std::string outcome;
};

}  // namespace rcuda::server
