#include "common/tls/connection.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <openssl/err.h>
#include <openssl/sslerr.h>
#include <poll.h>

#include "common/base/socket_io.h"
#include "common/tls/openssl.h"

namespace rcuda::tls {
namespace {

constexpr size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;

}  // namespace

Result<std::unique_ptr<Connection>> Connection::create(SSL_CTX* context, int socket, Role role) {
  SSL* const ssl = SSL_new(context);
  BIO* const bio = ssl ? make_bio(socket) : nullptr;
  if (!bio) {
    SSL_free(ssl);
    return ssl_error("cannot make a TLS connection");
  }
  SSL_set_bio(ssl, bio, bio);
  role == Role::kServer ? SSL_set_accept_state(ssl) : SSL_set_connect_state(ssl);
  return std::unique_ptr<Connection>(new Connection(ssl, socket));
}

Connection::~Connection() { SSL_free(ssl_); }

Result<Connection::Progress> Connection::shake_hands() {
  ERR_clear_error();
  errno = 0;
  const int result = SSL_do_handshake(ssl_);
  if (result == 1) return Progress::kDone;
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ:
      return Progress::kWantsRead;
    case SSL_ERROR_WANT_WRITE:
      return Progress::kWantsWrite;
    case SSL_ERROR_SYSCALL:
      return Status(Code::kUnavailable, "the peer closed the connection in the TLS handshake");
    default:
      break;
  }
  const long verified = SSL_get_verify_result(ssl_);
  if (verified != X509_V_OK) {
    ERR_clear_error();
    return Status(Code::kDenied, std::string("the peer's certificate is not valid here: ") +
                                     X509_verify_cert_error_string(verified));
  }
  if (ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_WRONG_VERSION_NUMBER) {
    ERR_clear_error();
    return Status(Code::kDenied,
                  "the peer does not speak TLS: is it an rcuda-server that listens for other "
                  "machines (--listen)? See its log");
  }
  return ssl_error("the TLS handshake failed");
}

Key Connection::exported(const char* label) const {
  Key key{};
  // Fails only before the end of the handshake and without memory. Abort: the key would be known to
  // attackers.
  if (SSL_export_keying_material(ssl_, key.data(), key.size(), label, std::strlen(label), nullptr,
                                 0, 0) != 1) {
    std::abort();
  }
  return key;
}

std::optional<std::string> Connection::peer_name() const {
  const Owned<X509> certificate(SSL_get1_peer_certificate(ssl_));
  if (!certificate) return {};
  X509_NAME* const subject = X509_get_subject_name(certificate.get());
  const int index = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (index < 0) return {};
  unsigned char* text = nullptr;
  const int bytes =
      ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, index)));
  if (bytes < 0) return {};
  std::string name(reinterpret_cast<char*>(text), static_cast<size_t>(bytes));
  OPENSSL_free(text);
  // Functions that stop at a NUL would read such a name as another user's.
  const auto is_odd = [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == 0x7f; };
  const bool single = X509_NAME_get_index_by_NID(subject, NID_commonName, index) < 0;
  if (!single || name.empty() || std::any_of(name.begin(), name.end(), is_odd)) return {};
  return name;
}

// Converts a result of SSL_read or SSL_write to the result of a call on a non-blocking socket.
int Connection::outcome(int result) const {
  if (result > 0) return result;
  const int error = errno;
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      errno = EAGAIN;
      return -1;
    case SSL_ERROR_ZERO_RETURN:
      return 0;
    case SSL_ERROR_SYSCALL:
      // Without an errno the peer has closed the connection. TLS's close_notify is not used: the
      // messages inside report the end, and a truncated stream looks like a lost peer.
      ERR_clear_error();
      errno = error;
      return error ? -1 : 0;
    default:  // a forged or broken record
      ERR_clear_error();
      errno = EPROTO;
      return -1;
  }
}

// Sends a KeyUpdate if the socket certainly has room for it. OpenSSL reads nothing while it has a
// part of a KeyUpdate to send, so two ends in this state with full sockets would deadlock.
void Connection::renew_key() {
  pollfd entry{socket_, POLLOUT, 0};
  if (::poll(&entry, 1, 0) != 1 || (entry.revents & ~POLLOUT) != 0) return;
  ERR_clear_error();
  if (SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) == 1 && SSL_do_handshake(ssl_) == 1) {
    records_ = 0;
  }
  ERR_clear_error();
}

ssize_t Connection::send(std::span<const iovec> pieces) {
  MutexLock lock(mutex_);
  const void* data = nullptr;
  size_t bytes = begun_;
  if (!record_) record_ = std::make_unique<std::byte[]>(kRecordBytes);
  if (begun_ != 0) {
    data = record_.get();
  } else {
    for (const iovec& piece : pieces) {
      if (bytes == 0 && piece.iov_len >= kRecordBytes) {
        data = piece.iov_base;
        bytes = kRecordBytes;
        break;
      }
      const size_t some = std::min(piece.iov_len, kRecordBytes - bytes);
      if (some) std::memcpy(record_.get() + bytes, piece.iov_base, some);
      bytes += some;
    }
    if (!data) data = record_.get();
  }
  if (bytes == 0) return 0;
  if (records_ >= records_per_key_ && begun_ == 0) renew_key();
  ERR_clear_error();
  errno = 0;
  const int sent = outcome(SSL_write(ssl_, data, static_cast<int>(bytes)));
  if (sent > 0) {
    begun_ = 0;
    ++records_;
  } else if (sent == 0) {
    errno = EPIPE;
    return -1;
  } else if (errno == EAGAIN) {
    // OpenSSL may not have encrypted the bytes yet, so the next call must pass the same bytes.
    if (data != record_.get()) std::memcpy(record_.get(), data, bytes);
    begun_ = bytes;
    errno = EAGAIN;
  }
  return sent;
}

ssize_t Connection::recv(void* data, size_t bytes, bool peek) {
  if (bytes == 0) return 0;
  const int most = static_cast<int>(std::min(bytes, kRecordBytes));
  MutexLock lock(mutex_);
  ERR_clear_error();
  errno = 0;
  return outcome(peek ? SSL_peek(ssl_, data, most) : SSL_read(ssl_, data, most));
}

Status shake_hands(Connection& connection, int socket,
                   std::chrono::steady_clock::time_point deadline) {
  for (;;) {
    RCUDA_ASSIGN_OR_RETURN(const auto progress, connection.shake_hands());
    if (progress == Connection::Progress::kDone) return {};
    const bool reads = progress == Connection::Progress::kWantsRead;
    pollfd entry{socket, static_cast<short>(reads ? POLLIN : POLLOUT), 0};
    const int ready = ::poll(&entry, 1, poll_timeout_ms(deadline));
    if (ready == 0) return {Code::kTimeout, "the peer did not finish the TLS handshake in time"};
    if (ready < 0 && errno != EINTR) return Status::from_errno(errno, "poll");
  }
}

}  // namespace rcuda::tls
