// A door: the process that speaks TLS with the clients of one origin, in the daemon's place
// (doors.h has the daemon's side).
//
// The daemon starts it from its own binary. It enters its sandbox before it receives the first
// client, so it never handles a client's bytes outside of the sandbox. The sandbox restricts:
//   user          for a server of root: nobody, without groups. A user namespace may have no such
//                 user; then the door remains root of the namespace
//   system calls  those of streams only (call_filter.h): it opens nothing, starts neither processes
//                 nor threads, sends no descriptors
//   its memory    not dumpable, no core file, bounded; no environment of the server; neither the
//                 server's key nor its tokens
//   its share     one thread, and less of the processors than the server (nice)
//
// For each client, the daemon makes a pair of connected sockets (the stream). It sends one end
// through the control socket, and the accepted socket through the stream. The door waits only in
// one poll() for all clients. For each client:
//
//   handshake     the door makes the TLS handshake, then sends a DoorReport through the stream
//   to the daemon it passes two messages of the client: Authenticate, decoded and encoded again,
//                 and a request. After these it reads nothing from the client, because the client's
//                 next bytes may be for a worker, which gets the daemon's descriptor of the socket
//   to the client it passes all that the daemon sends, until the daemon ends the stream. Then it
//                 ends the connection without close_notify
//
// If a client leaves or violates the protocol, the door shuts down its half of the stream. After a
// violation, it also sends the client a Refusal. To end a connection, the daemon shuts down the
// client's socket and ends the stream.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "common/tls/connection.h"

namespace rcuda::server {

// The option that runs the daemon's binary as a door, and the number of the door's control socket.
// Besides the standard descriptors, a door has only this descriptor at its start.
inline constexpr char kDoorOption[] = "--door";
inline constexpr int kDoorControl = 3;

// The message that carries a descriptor to a door.
using DoorHandover = std::byte;

// A door's report of a handshake.
struct DoorReport {
  tls::Key proof{}, session{};  // exported() for kProofLabel and kSessionLabel
  char failure[256] = {};       // not empty: the handshake has failed
};

// The longest message of a client, in bytes.
inline constexpr uint32_t kMostIntroduction = 64u << 10;

// How long all clients may take to read the remaining bytes after the daemon has closed the control
// socket.
inline constexpr std::chrono::seconds kReadsRest{6};

// Runs until the daemon closes the control socket or dies. Returns the exit status of a failed
// start.
int run_door();

}  // namespace rcuda::server
