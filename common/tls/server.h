// The server's side of the TLS connections on which clients identify themselves.
//
// Threads: any; the daemon has one. Only create() blocks: it reads files. Errors name the file and
// the remedy.
#pragma once

#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/tls/connection.h"

namespace rcuda::tls {

class Server {
 public:
  // `certificate`: a PEM file with the server's certificate, its chain and its key. `client_ca`: a
  // PEM file with the authorities whose certificates clients may present; empty: none. A client
  // without a certificate is not refused here: it may have a token.
  static Result<std::unique_ptr<Server>> create(const std::string& certificate,
                                                const std::string& client_ca);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // The server's end of a connection; shake_hands() comes next.
  Result<std::unique_ptr<Connection>> accept(int socket) const;

 private:
  explicit Server(SSL_CTX* context) : context_(context) {}

  SSL_CTX* const context_;
};

// Whether these are the first bytes of a TLS connection.
inline bool looks_like_tls(std::byte first) { return first == std::byte{0x16}; }

}  // namespace rcuda::tls
