// The daemon's sockets: TCP for other machines and tools, and an abstract Unix socket, named after
// the port, over which clients of this machine pass descriptors for shared memory.
//
// All sockets are non-blocking and close on exec. Threads: the daemon's one thread. Nothing blocks.
// Errors name the address and the remedy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <sys/types.h>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/wire/handshake.h"

namespace rcuda::server {

struct Listener {
  UniqueFd tcp;
  UniqueFd local;
  uint16_t port = 0;
  std::string address;  // "127.0.0.1:8308"
  bool is_loopback = true;
};

// Port 0 takes a free one. kUnavailable if the port is taken, with the remedy.
Result<Listener> listen_on(const std::string& address, uint16_t port);

struct Accepted {
  UniqueFd socket;
  std::string peer;  // "10.0.0.7:51312", "pid 812 of uid 1000"
  // Connections of one origin share a bound: those of a user of this machine, of a host, of a
  // network of IPv6, or of loopback.
  std::string origin;
  std::optional<uid_t> user;     // of a local connection
  wire::TicketQuery connection;  // of a TCP connection: its two ends
};
// The next connection. Its socket is invalid if none waits.
Result<Accepted> accept_from(int listening, bool local);

// Accepted::origin of a TCP connection. A host of IPv6 may have a whole /64 of addresses.
std::string origin_of(const wire::Endpoint& client);

}  // namespace rcuda::server
