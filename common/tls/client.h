// The client's side of the TLS connections on which it identifies itself to a server.
//
// Threads: any. Blocking: until the handshake is done, or until the deadline. Errors: kDenied if
// the check fails or its file cannot be used; those of load_certificate(); kTimeout, kUnavailable.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/identity/token.h"
#include "common/tls/connection.h"

namespace rcuda::tls {

// How a client checks the server's certificate. With both empty, any server is accepted, and the
// caller must check it in another way (MUNGE over exported()).
struct ServerCheck {
  std::optional<identity::Hash> pinned;  // of its public key, from a token
  std::string authorities;  // PEM file: one of these authorities has signed it, for `host`
  std::string host;
};

// `certificate`: a PEM file with the client's certificate and key; empty: none.
Result<std::unique_ptr<Connection>> connect(int socket, const ServerCheck& check,
                                            const std::string& certificate,
                                            std::chrono::steady_clock::time_point deadline);

}  // namespace rcuda::tls
