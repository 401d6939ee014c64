// The client's side of the TLS connections on which it identifies itself to a server.
//
// Threads: any. Blocking: until the handshake is done, or until the deadline. Errors: kDenied if
// the server is not the one that the check names, or a file cannot be used; kTimeout, kUnavailable.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/identity/token.h"
#include "common/tls/connection.h"

namespace rcuda::tls {

// How a client checks the server's certificate. With neither, any server is accepted, and the
// caller must check it in another way (MUNGE over exported()).
struct ServerCheck {
  std::optional<identity::Hash> pinned;  // of its public key, as a token has it
  std::string authorities;               // PEM file: it is signed by one of these, for `host`
  std::string host;
};

// `certificate`: a PEM file with the client's certificate and key; empty: none.
Result<std::unique_ptr<Connection>> connect(int socket, const ServerCheck& check,
                                            const std::string& certificate,
                                            std::chrono::steady_clock::time_point deadline);

}  // namespace rcuda::tls
