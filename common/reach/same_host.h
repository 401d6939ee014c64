// Users and addresses of one machine. The functions find the user at the other end of a local
// socket, make the error for a user that the server does not serve, and recognise the addresses of
// this machine (of this network namespace). docs/security.md gives the reasons. Any thread; nothing
// blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <sys/socket.h>
#include <sys/types.h>

#include "common/base/status.h"
#include "common/messages/handshake.h"

namespace rcuda::wire {

// The error for a user of this machine that the server does not serve: kDenied. `server`, `client`:
// their users, such as "ada (uid 1000)".
Status not_served(uint16_t port, const std::string& server, const std::string& client);

// Returns the endpoint of an IPv4 or IPv6 address; the unspecified endpoint for any other family.
Endpoint endpoint_of(const sockaddr* address);
Result<Endpoint> own_endpoint(int socket);   // getsockname()
Result<Endpoint> peer_endpoint(int socket);  // getpeername()

bool is_ipv4(const Endpoint& endpoint);
// Whether the address is ::1 or in 127.0.0.0/8. The loopback interface has only one address of that
// network, but all addresses of the network reach this machine.
bool is_loopback(const Endpoint& endpoint);
// Whether the address is loopback, link-local, or of a network that the internet does not route
// (RFC 1918, RFC 4193). The unspecified address is not private: it means all addresses of a
// machine.
bool is_private(const Endpoint& endpoint);
// Whether one of the addresses is this machine's. Queries the kernel's interfaces.
Result<bool> any_on_this_machine(std::span<const Endpoint> endpoints);

}  // namespace rcuda::wire
