// Processes and addresses of one machine: who is at the other end of a local socket, whom a server
// serves there, and which addresses are this machine's own (of this network namespace, to be
// exact). docs/security.md says what for. Any thread; nothing blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <sys/socket.h>
#include <sys/types.h>

#include "common/base/status.h"
#include "common/wire/handshake.h"

namespace rcuda::wire {

// The effective user that connected, or that listens: whichever is the other end of a Unix socket.
Result<uid_t> peer_user(int local_socket);

// A server serves its own user and root on its machine. Others get not_served(), which is kDenied.
inline bool serves(uid_t server, uid_t client) { return client == 0 || client == server; }
Status not_served(uint16_t port, uid_t server, uid_t client);

// Of an IPv4 or IPv6 address; the unspecified endpoint of any other.
Endpoint endpoint_of(const sockaddr* address);
Result<Endpoint> own_endpoint(int socket);   // getsockname()
Result<Endpoint> peer_endpoint(int socket);  // getpeername()

bool is_ipv4(const Endpoint& endpoint);
// 127.0.0.0/8, of which an interface carries one address and all are this machine's, or ::1.
bool is_loopback(const Endpoint& endpoint);
// Whether an address of the list is this machine's. Asks the kernel for its interfaces.
Result<bool> any_on_this_machine(std::span<const Endpoint> endpoints);

}  // namespace rcuda::wire
