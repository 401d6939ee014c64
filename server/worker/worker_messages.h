// What the daemon and its workers say to one another, over the sequenced-packet socket pair that
// the worker was started with. Both ends are the same binary, so the packets are plain structs.
//
// worker -> daemon   kReady or kFailed, once
// daemon -> worker   kSession (+ the client's socket, then the encoded Hello), once;
//                    kAttach (+ a further socket of that client); kPeer (+ the socket of another
//                    worker of that client, then its PeerHello); kStop
// The end of the socket says the rest: a worker whose daemon is gone ends its session and exits.
// Neither side ever has more than a few in flight; a worker that has stopped reading (a debugger's,
// a client's that floods it) does not hold the daemon, whose deadline is now.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/socket_io.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/wire/handshake.h"

namespace rcuda::server {

enum class WorkerMessageType : uint32_t { kReady = 1, kFailed, kSession, kAttach, kPeer, kStop };

struct WorkerMessage {
  WorkerMessageType type{};
  uint32_t index = 0;      // kAttach: of the stream
  uint8_t token[16] = {};  // kSession: names the session in Attach
  std::vector<std::byte>
      body;  // kSession: the Hello; kPeer: the PeerHello; kReady: WorkerReady; kFailed: the reason
  UniqueFd socket;  // kSession, kAttach, kPeer
};

inline constexpr size_t kMaxWorkerMessageBytes = 96u << 10;

// Blocks while the other process does not read, until the deadline: kTimeout.
Status send_worker_message(int socket, const WorkerMessage& message, Deadline deadline);
// Blocks until a packet is there. kUnavailable at the end of the socket.
Result<WorkerMessage> receive_worker_message(int socket);

// What a ready worker offers, for the daemon's log line and its checks.
struct WorkerReady {
  std::string driver;  // "CUDA 13.0 by /usr/lib/x86_64-linux-gnu/libcuda.so.1"
  std::vector<wire::ServerStatus::Device> devices;
  std::vector<uint32_t> ordinals() const;
};
std::vector<std::byte> encode(const WorkerReady& ready);
Result<WorkerReady> decode_worker_ready(const std::vector<std::byte>& body);

}  // namespace rcuda::server
