// The client's part of identification: the client proves its user to a server and checks the
// server, before the client sends anything else. docs/security.md describes the methods. The
// daemon's part is server/identity/authenticator.h.
//
// Threads: any. Blocking: until the server has answered, or until the deadline; with MUNGE also
// until munged has answered, several seconds if it hangs. Errors name the missing item and the
// remedy.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "common/config/settings.h"
#include "common/reach/connect.h"
#include "common/reach/trusted_users.h"

namespace rcuda::wire {

// The protection that a connection over a network must have. A server also has this setting: the
// least protection that it accepts.
enum class Security : uint8_t {
  kAuto,  // client: a ticket from a server of this machine, otherwise kTls
  kTls,   // identity and encryption
  kNone,  // neither; only with a server that was started with --insecure
};

// A program's credentials, from its environment.
struct Credentials {
  config::Registry registry{"RCUDA_"};
  config::Choice security{registry,
                          "RCUDA_SECURITY",
                          {"auto", "tls", "none"},
                          "protection of connections: auto (a ticket on the server's own machine, "
                          "else tls), tls, or none (for servers with --insecure)"};
  config::String token_file{registry, "RCUDA_TOKEN_FILE", "",
                            "file with this user's tokens; empty: ~/.config/rcuda/token"};
  config::String certificate{registry, "RCUDA_TLS_CERTIFICATE", "",
                             "PEM file with this user's certificate and key"};
  config::String authorities{registry, "RCUDA_TLS_AUTHORITIES", "",
                             "PEM file with the authorities that sign servers' certificates"};
  config::String munge_socket{registry, "RCUDA_MUNGE_SOCKET", "",
                              "path of munged's socket; empty: the default of libmunge"};
  TrustedUsers trusted{registry};
  config::String lease{registry, "RCUDA_LEASE", "",
                       "keys of the leases to use, as \"rcuda-lease take\" prints them"};
};

// Identifies this client on a connection whose medium has Reach::kNetwork. `host` and `port` are as
// the user names them. After success the server knows the client's user, and `connection` may be
// encrypted. With RCUDA_SECURITY=none, does nothing.
Status identify(Connection* connection, const std::string& host, uint16_t port,
                const Credentials& credentials, std::chrono::steady_clock::time_point deadline);

// If RCUDA_LEASE has a lease for the server, puts the lease's id and proof into the Hello for the
// server. Call this after identify(). `binding`: Connection::binding. Returns kInvalidArgument if
// RCUDA_LEASE is malformed, or if its entry without a host has a secret.
Status present_lease(const std::string& host, uint16_t port, const Credentials& credentials,
                     const tls::Key& binding, Hello* hello);

}  // namespace rcuda::wire
