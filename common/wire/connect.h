// Finding and reaching a server: name resolution, choice of medium, the connecting socket. Used by
// clients, and by workers that call on workers of other servers; servers listen at LocalAddress.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include <sys/socket.h>
#include <sys/un.h>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/transport/media.h"
#include "common/wire/handshake.h"

namespace rcuda::wire {

struct Connection {
  UniqueFd socket;
  const transport::Medium* medium = nullptr;  // what the socket is good for; never null
};

// `medium` null: the plain medium of this machine when `host` is it and a server listens there for
// it, else the plain one of the network.
// Resolving the name takes what it takes; then it blocks up to the timeout. Errors name host and
// port and say what to check; kDenied when this machine's server is not for this user.
Result<Connection> connect_server(const std::string& host, uint16_t port,
                                  const transport::Medium* medium,
                                  std::chrono::milliseconds timeout);

// Must come first on a connection of Reach::kNetwork that begins with a Hello or a StatusQuery.
// Where `socket` stays on this machine: gets a ticket for it over the server's local socket and
// presents it.
// Without a local socket, as behind a proxy, it presents none, and the server decides.
Status present_ticket(int socket, std::chrono::steady_clock::time_point deadline);

// The client's end of a session's Link: `connection` is where the worker's Welcome came, with that
// token. Errors as of transport::make_link().
struct LinkTimeouts {
  std::chrono::milliseconds whole;       // for the worker to do its part
  std::chrono::milliseconds connecting;  // for each further socket
};
Result<std::unique_ptr<transport::Link>> link_to_worker(Connection connection,
                                                        const uint8_t (&token)[16],
                                                        const transport::LinkOptions& options,
                                                        const LinkTimeouts& timeouts);

// Where clients of its machine find the server of a port: an abstract Unix socket, which vanishes
// with the server.
class LocalAddress {
 public:
  explicit LocalAddress(uint16_t port);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  socklen_t bytes() const { return bytes_; }
  std::string text() const;  // "@rcuda-8308"

 private:
  sockaddr_un address_{};
  socklen_t bytes_;
};

Result<UniqueFd> connect_tcp(const std::string& host, uint16_t port,
                             std::chrono::steady_clock::time_point deadline);
// One more connection to where `socket`, a TCP one, is connected. Its host's name may mean another
// host each time that it is resolved.
Result<UniqueFd> connect_again(int socket, std::chrono::steady_clock::time_point deadline);

}  // namespace rcuda::wire
