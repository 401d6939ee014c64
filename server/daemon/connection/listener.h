// The daemon's sockets: TCP for other machines and tools, and local sockets, named after the port,
// over which clients of this machine pass descriptors for shared memory.
//
// The listening sockets are non-blocking; accepted sockets are blocking. All close on exec.
// Threads: the daemon's only thread. Blocking: listen_on(), if it gets a name that must be
// resolved. Errors name the address and the remedy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <sys/types.h>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/messages/handshake.h"
#include "server/daemon/connection/local_listener.h"

namespace rcuda::server {

struct Listener {
  UniqueFd tcp;
  LocalListener local;       // abstract; a server of root runs without it if its name is taken
  LocalListener roots;       // in root's folder; only a server of root has it
  LocalListener containers;  // in the containers' folder; only a server of root has it
  uint16_t port = 0;
  std::string address;  // "127.0.0.1:8308"
  wire::Endpoint endpoint;
  bool is_loopback = true;
  // Whether a connection to this address and port of this machine reaches the listener.
  bool is_at(const wire::Endpoint& server) const;
  bool is_private = true;  // loopback, or an address that is not routed on the internet
};

// Opens the local sockets that have paths (`roots`, `containers`), for a server of root. Warns if
// one of these or the abstract socket is missing. Fails if both the abstract socket and `roots` are
// missing.
Status listen_as_root(Listener* listener, std::optional<gid_t> only_group);

// Port 0 takes a free port. kUnavailable if the port is taken; the text has the remedy.
Result<Listener> listen_on(const std::string& address, uint16_t port);

// For a successor (successor.h).
CarriedListener carry(const Listener& listener);
Listener restore(const CarriedListener& carried);

struct Accepted {
  UniqueFd socket;
  std::string peer;  // "10.0.0.7:51312", "pid 812 of uid 1000"
  // A user of this machine, a host, an IPv6 network, or loopback. Too many connections from one
  // origin replace one another (connections.h).
  std::string origin;
  wire::TicketQuery connection;  // of a TCP connection: its two ends
};
// Accepts the next connection. Its socket is invalid if no connection is waiting.
Result<Accepted> accept_from(int listening, bool local);

// Accepted::origin of a TCP connection. An IPv6 host may own a whole /64 of addresses, so a /64 is
// one origin.
std::string origin_of(const wire::Endpoint& client);

}  // namespace rcuda::server
