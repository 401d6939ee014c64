// The TLS handshakes of a client and of a server's door. They prove no identity; proof.h does.
//
// Threads: any. Blocking: connect(), until the handshake is done, or until the deadline. Errors:
// kDenied if a handshake fails, kTimeout, kUnavailable.
#pragma once

#include <chrono>
#include <memory>

#include "common/base/status.h"
#include "common/tls/connection.h"

namespace rcuda::tls {

Result<std::unique_ptr<Connection>> connect(int socket,
                                            std::chrono::steady_clock::time_point deadline);

// The server's side. create() makes a new key and certificate, which clients do not check.
class Acceptor {
 public:
  static Result<Acceptor> create();
  // Returns the server's end of a connection. The caller calls shake_hands() next.
  Result<std::unique_ptr<Connection>> accept(int socket) const;

 private:
  std::shared_ptr<SSL_CTX> context_;
};

// Whether a TLS connection begins with this byte.
inline bool looks_like_tls(std::byte first) { return first == std::byte{0x16}; }

}  // namespace rcuda::tls
