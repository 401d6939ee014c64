#include "common/tls/client.h"

#include <arpa/inet.h>
#include <openssl/crypto.h>
#include <openssl/x509v3.h>

#include "common/identity/certificate.h"
#include "common/tls/openssl.h"

namespace rcuda::tls {
namespace {

Status use_certificate(SSL_CTX* context, const std::string& file) {
  // Other users must not be able to read the key. OpenSSL would ask at the terminal for the
  // password of an encrypted key.
  RCUDA_RETURN_IF_ERROR(identity::load_certificate(file).status());
  if (SSL_CTX_use_certificate_chain_file(context, file.c_str()) == 1 &&
      SSL_CTX_use_PrivateKey_file(context, file.c_str(), SSL_FILETYPE_PEM) == 1) {
    return {};
  }
  return ssl_error("cannot use the certificate and the key in " + file);
}

// Asks OpenSSL to check the chain, and the host's name or address in the certificate.
Status require_authority(SSL_CTX* context, SSL* ssl, const ServerCheck& check) {
  if (SSL_CTX_load_verify_file(context, check.authorities.c_str()) != 1) {
    return ssl_error("cannot use the certificates of authorities in " + check.authorities);
  }
  SSL_set1_verify_cert_store(ssl, SSL_CTX_get_cert_store(context));
  X509_VERIFY_PARAM* const parameters = SSL_get0_param(ssl);
  unsigned char address[16];
  const char* const host = check.host.c_str();
  const bool is_address =
      ::inet_pton(AF_INET, host, address) == 1 || ::inet_pton(AF_INET6, host, address) == 1;
  const int set = is_address ? X509_VERIFY_PARAM_set1_ip_asc(parameters, host)
                             : X509_VERIFY_PARAM_set1_host(parameters, host, check.host.size());
  if (set != 1) return ssl_error("cannot check a certificate for the host " + check.host);
  SSL_set_verify(ssl, SSL_VERIFY_PEER, nullptr);
  return {};
}

Status check_pin(SSL* ssl, const identity::Hash& pinned) {
  const Owned<X509> certificate(SSL_get1_peer_certificate(ssl));
  if (!certificate) return {Code::kDenied, "the server presented no certificate"};
  RCUDA_ASSIGN_OR_RETURN(const identity::Hash seen, identity::fingerprint_of(certificate.get()));
  if (CRYPTO_memcmp(seen.data(), pinned.data(), pinned.size()) == 0) return {};
  return Status(Code::kDenied,
                "the server does not have the key that the token names: it is another server, or "
                "its certificate was replaced; then ask for a new token (rcuda-token create)");
}

}  // namespace

Result<std::unique_ptr<Connection>> connect(int socket, const ServerCheck& check,
                                            const std::string& certificate,
                                            std::chrono::steady_clock::time_point deadline) {
  RCUDA_ASSIGN_OR_RETURN(Owned<SSL_CTX> context, make_context(TLS_client_method()));
  if (!certificate.empty()) RCUDA_RETURN_IF_ERROR(use_certificate(context.get(), certificate));
  RCUDA_ASSIGN_OR_RETURN(auto connection, Connection::create(context.get(), socket, Role::kClient));
  SSL* const ssl = connection->ssl();
  if (!check.authorities.empty() && !check.pinned) {
    RCUDA_RETURN_IF_ERROR(require_authority(context.get(), ssl, check));
  }
  RCUDA_RETURN_IF_ERROR(shake_hands(*connection, socket, deadline));
  if (check.pinned) RCUDA_RETURN_IF_ERROR(check_pin(ssl, *check.pinned));
  return connection;
}

}  // namespace rcuda::tls
