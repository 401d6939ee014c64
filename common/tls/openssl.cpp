#include "common/tls/openssl.h"

#include <cerrno>

#include <openssl/err.h>

#include "common/tls/record_buffer.h"

namespace rcuda::tls {
namespace {

RecordBuffer& buffer_of(BIO* bio) { return *static_cast<RecordBuffer*>(BIO_get_data(bio)); }

int bio_write(BIO* bio, const char* data, int bytes) {
  BIO_clear_retry_flags(bio);
  return buffer_of(bio).add(std::as_bytes(std::span(data, static_cast<size_t>(bytes)))) ? bytes
                                                                                        : -1;
}

int bio_read(BIO* bio, char* data, int bytes) {
  BIO_clear_retry_flags(bio);
  const ssize_t received =
      buffer_of(bio).take(std::as_writable_bytes(std::span(data, static_cast<size_t>(bytes))));
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(received);
}

long bio_control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH; }

const BIO_METHOD* bio_method() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "records");
    if (!made) return made;
    BIO_meth_set_write(made, bio_write);
    BIO_meth_set_read(made, bio_read);
    BIO_meth_set_ctrl(made, bio_control);
    return made;
  }();
  return method;
}

}  // namespace

void initialise() {
  static const int done =
      OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT | OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
  (void)done;
}

Result<Owned<SSL_CTX>> make_context(const SSL_METHOD* method) {
  initialise();
  Owned<SSL_CTX> context(SSL_CTX_new(method));
  if (!context) return ssl_error("OpenSSL cannot make a TLS context");
  SSL_CTX* const raw = context.get();
  SSL_CTX_set_options(raw, SSL_OP_NO_RENEGOTIATION);
  // SSL_read() must return after each message without data. Otherwise a peer that sends only key
  // updates would keep a thread in one call.
  SSL_CTX_clear_mode(raw, SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_mode(raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // No session is resumed: a full handshake takes about a millisecond.
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  if (SSL_CTX_set_min_proto_version(raw, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(raw,
                               "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:"
                               "TLS_CHACHA20_POLY1305_SHA256") != 1 ||
      // Cheap groups only: an unauthenticated peer chooses, and other groups take 100 times longer.
      SSL_CTX_set1_groups_list(raw, "X25519:P-256") != 1 || SSL_CTX_set_num_tickets(raw, 0) != 1) {
    return ssl_error("OpenSSL does not support TLS 1.3 with the ciphers and groups of rcuda");
  }
  return context;
}

Status ssl_error(const std::string& what) {
  const unsigned long error = ERR_peek_last_error();
  const char* const reason = error ? ERR_reason_error_string(error) : nullptr;
  ERR_clear_error();
  return Status(Code::kDenied, what + (reason ? std::string(" (") + reason + ")" : ""));
}

Status check_chain(const std::vector<Owned<X509>>& chain, X509_STORE* authorities,
                   const char* purpose, const std::function<int(X509_VERIFY_PARAM*)>& set) {
  const Owned<X509_STORE_CTX> context(X509_STORE_CTX_new());
  STACK_OF(X509)* const others = sk_X509_new_null();
  for (const Owned<X509>& one : chain) sk_X509_push(others, one.get());
  const bool ready =
      context &&
      X509_STORE_CTX_init(context.get(), authorities, chain.front().get(), others) == 1 &&
      X509_STORE_CTX_set_default(context.get(), purpose) == 1 &&
      set(X509_STORE_CTX_get0_param(context.get())) == 1;
  // Requires keys of at least 112 bits of security, as Debian's OpenSSL does in TLS.
  if (ready) X509_VERIFY_PARAM_set_auth_level(X509_STORE_CTX_get0_param(context.get()), 2);
  const bool valid = ready && X509_verify_cert(context.get()) == 1;
  const int reason = ready ? X509_STORE_CTX_get_error(context.get()) : X509_V_ERR_UNSPECIFIED;
  sk_X509_free(others);
  ERR_clear_error();
  if (valid) return {};
  return Status(Code::kDenied, std::string("the peer's certificate is not valid here: ") +
                                   X509_verify_cert_error_string(reason));
}

BIO* make_bio(RecordBuffer* buffer) {
  const BIO_METHOD* const method = bio_method();
  BIO* const bio = method ? BIO_new(method) : nullptr;
  if (!bio) return nullptr;
  BIO_set_data(bio, buffer);
  BIO_set_init(bio, 1);
  return bio;
}

}  // namespace rcuda::tls
