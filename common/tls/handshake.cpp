#include "common/tls/handshake.h"

#include "common/identity/certificate.h"
#include "common/tls/openssl.h"

namespace rcuda::tls {
namespace {

constexpr size_t kMostHandshake = 16u << 10;

}  // namespace

Result<std::unique_ptr<Connection>> connect(int socket,
                                            std::chrono::steady_clock::time_point deadline) {
  RCUDA_ASSIGN_OR_RETURN(const Owned<SSL_CTX> context, make_context(TLS_client_method()));
  RCUDA_ASSIGN_OR_RETURN(auto connection, Connection::create(context.get(), socket, Role::kClient));
  RCUDA_RETURN_IF_ERROR(shake_hands(*connection, socket, deadline));
  return connection;
}

Result<Acceptor> Acceptor::create() {
  Acceptor made;
  RCUDA_ASSIGN_OR_RETURN(Owned<SSL_CTX> context, make_context(TLS_server_method()));
  RCUDA_ASSIGN_OR_RETURN(const identity::Certificate own, identity::make_certificate("rcuda"));
  if (SSL_CTX_use_certificate(context.get(), own.x509.get()) != 1 ||
      SSL_CTX_use_PrivateKey(context.get(), own.key.get()) != 1) {
    return ssl_error("OpenSSL cannot use the certificate that this server made for TLS");
  }
  // Saves memory, because thousands of connections may be idle.
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS);
  made.context_.reset(context.release(), Free());
  return made;
}

Result<std::unique_ptr<Connection>> Acceptor::accept(int socket) const {
  RCUDA_ASSIGN_OR_RETURN(auto connection,
                         Connection::create(context_.get(), socket, Role::kServer));
  // A client of rcuda sends less than 2 KiB. OpenSSL would accept 128 KiB, and keep several times
  // as much.
  connection->limit_handshake(kMostHandshake);
  return connection;
}

}  // namespace rcuda::tls
