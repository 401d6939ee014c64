#include "common/tls/server.h"

#include "common/tls/openssl.h"

namespace rcuda::tls {

Result<std::unique_ptr<Server>> Server::create(const std::string& certificate,
                                               const std::string& client_ca) {
  RCUDA_ASSIGN_OR_RETURN(Owned<SSL_CTX> made, make_context(TLS_server_method()));
  SSL_CTX* const context = made.get();
  if (SSL_CTX_use_certificate_chain_file(context, certificate.c_str()) != 1 ||
      SSL_CTX_use_PrivateKey_file(context, certificate.c_str(), SSL_FILETYPE_PEM) != 1) {
    Status status = ssl_error("cannot use the certificate and the key in " + certificate);
    return Status(Code::kInvalidArgument, status.context());
  }
  if (!client_ca.empty()) {
    if (SSL_CTX_load_verify_file(context, client_ca.c_str()) != 1) {
      Status status = ssl_error("cannot use the certificates of authorities in " + client_ca);
      return Status(Code::kInvalidArgument, status.context());
    }
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
    // The names by which a client chooses its certificate.
    SSL_CTX_set_client_CA_list(context, SSL_load_client_CA_file(client_ca.c_str()));
  }
  return std::unique_ptr<Server>(new Server(made.release()));
}

Server::~Server() { SSL_CTX_free(context_); }

Result<std::unique_ptr<Connection>> Server::accept(int socket) const {
  return Connection::create(context_, socket, Role::kServer);
}

}  // namespace rcuda::tls
