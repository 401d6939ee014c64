// Finding and reaching a server: name resolution, choice of medium, the connecting socket. Used by
// clients, and by workers that call on workers of other servers.
#pragma once

#include <chrono>
#include <string>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/wire/handshake.h"

namespace rcuda::wire {

struct Connection {
  UniqueFd socket;
  Medium medium = Medium::kTcp;  // what the socket is good for; never kAuto
};

// kAuto tries shared memory when `host` is this machine, then verbs where both ends can, then TCP.
// Blocks up to the timeout. Errors name host and port and say what to check.
Result<Connection> connect_server(const std::string& host, uint16_t port, Medium medium,
                                  std::chrono::milliseconds timeout);
Result<UniqueFd> connect_tcp(const std::string& host, uint16_t port,
                             std::chrono::steady_clock::time_point deadline);

}  // namespace rcuda::wire
