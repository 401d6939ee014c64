// The daemon's sockets: TCP for other machines and tools, and an abstract Unix socket, named after
// the port, over which clients of this machine pass descriptors for shared memory. Everything is
// non-blocking and closed on exec. Used by the daemon's one thread.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace rcuda::server {

struct Listener {
  UniqueFd tcp;
  UniqueFd local;
  uint16_t port = 0;
  std::string address;  // "127.0.0.1:8308"
  bool is_loopback = true;
};

// Port 0 takes a free one. kUnavailable when the port is taken, with the mend.
Result<Listener> listen_on(const std::string& address, uint16_t port);

struct Accepted {
  UniqueFd socket;
  std::string peer;  // "10.0.0.7:51312", "pid 812 of uid 1000"
};
// The next connection; an invalid socket when none waits.
Result<Accepted> accept_from(int listening, bool local);

}  // namespace rcuda::server
