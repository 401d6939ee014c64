#include "common/tls/keyed.h"

#include <cstdlib>
#include <cstring>

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "common/tls/openssl.h"

namespace rcuda::tls {
namespace {

// A connection has one key, so all keys have the same name on the wire.
constexpr unsigned char kName[] = "rcuda";
constexpr size_t kNameBytes = sizeof kName - 1;
constexpr unsigned char kAes128GcmSha256[] = {0x13, 0x01};

// Returns the key as a TLS session: for OpenSSL, a handshake with a pre-shared key resumes a
// session.
SSL_SESSION* session_of(SSL* ssl) {
  const Key& key = *static_cast<const Key*>(SSL_get_app_data(ssl));
  const SSL_CIPHER* const cipher = SSL_CIPHER_find(ssl, kAes128GcmSha256);
  Owned<SSL_SESSION> session(SSL_SESSION_new());
  if (!session || !cipher ||
      SSL_SESSION_set1_master_key(session.get(), key.data(), key.size()) != 1 ||
      SSL_SESSION_set_cipher(session.get(), cipher) != 1 ||
      SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) != 1) {
    return nullptr;
  }
  return session.release();
}

int use_key(SSL* ssl, const EVP_MD*, const unsigned char** name, size_t* bytes,
            SSL_SESSION** session) {
  *name = kName;
  *bytes = kNameBytes;
  *session = session_of(ssl);
  return *session != nullptr;
}

// A peer that offers another name, or no name, gets no session. Its handshake then fails, because
// there is no certificate.
int find_key(SSL* ssl, const unsigned char* name, size_t bytes, SSL_SESSION** session) {
  const bool ours = bytes == kNameBytes && std::memcmp(name, kName, bytes) == 0;
  *session = ours ? session_of(ssl) : nullptr;
  return !ours || *session;
}

Result<Owned<SSL_CTX>> make_keyed_context() {
  Result<Owned<SSL_CTX>> context = make_context(TLS_method());
  if (!context) return context;
  // Only this cipher suite, because the key is bound to its hash (session_of()).
  SSL_CTX_set_ciphersuites(context->get(), "TLS_AES_128_GCM_SHA256");
  SSL_CTX_set_psk_use_session_callback(context->get(), use_key);
  SSL_CTX_set_psk_find_session_callback(context->get(), find_key);
  return context;
}

// Never destroyed: connections may outlive every object.
const Result<Owned<SSL_CTX>>& keyed_context() {
  static const auto& context = *new Result<Owned<SSL_CTX>>(make_keyed_context());
  return context;
}

}  // namespace

void prepare() { (void)keyed_context(); }

Result<Socket> encrypt(UniqueFd socket, const Key& key, Role role,
                       std::chrono::steady_clock::time_point deadline) {
  const Result<Owned<SSL_CTX>>& context = keyed_context();
  if (!context) return context.status();
  RCUDA_ASSIGN_OR_RETURN(auto connection,
                         Connection::create(context->get(), socket.get(), role, true));
  SSL* const ssl = connection->ssl();
  SSL_set_app_data(ssl, const_cast<Key*>(&key));
  const Status status = shake_hands(*connection, socket.get(), deadline);
  SSL_set_app_data(ssl, nullptr);
  RCUDA_RETURN_IF_ERROR(Status(status).with_context("encrypting a connection of the session"));
  if (SSL_session_reused(ssl) != 1) {
    return Status(Code::kDenied,
                  "the peer does not have the session's key: the connection is refused");
  }
  return Socket(std::move(socket), std::move(connection));
}

Key derive(const Key& key, std::string_view label) {
  initialise();
  Key derived{};
  unsigned int bytes = 0;
  // Fails only if there is no memory. A failure aborts the process, because a key of zeros would be
  // known to attackers.
  if (!HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
            reinterpret_cast<const unsigned char*>(label.data()), label.size(), derived.data(),
            &bytes)) {
    std::abort();
  }
  return derived;
}

}  // namespace rcuda::tls
