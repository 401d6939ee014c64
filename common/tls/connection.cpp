#include "common/tls/connection.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <openssl/err.h>
#include <openssl/sslerr.h>
#include <poll.h>

#include "common/base/socket_io.h"
#include "common/tls/openssl.h"

namespace rcuda::tls {
namespace {

constexpr size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
// The most records of one send(). More records gain nothing: encrypting eight records already takes
// much longer than the system call.
constexpr size_t kRecordsOfSend = 8;

}  // namespace

Result<std::unique_ptr<Connection>> Connection::create(SSL_CTX* context, int socket, Role role,
                                                       bool reads_ahead) {
  std::unique_ptr<Connection> made(new Connection(RecordBuffer(socket, reads_ahead)));
  SSL* const ssl = made->ssl_ = SSL_new(context);
  BIO* const bio = ssl ? make_bio(&made->buffer_) : nullptr;
  if (!bio) return ssl_error("OpenSSL cannot make a TLS connection");
  SSL_set_bio(ssl, bio, bio);
  role == Role::kServer ? SSL_set_accept_state(ssl) : SSL_set_connect_state(ssl);
  return made;
}

Connection::~Connection() { SSL_free(ssl_); }

Result<Connection::Progress> Connection::shake_hands() {
  ERR_clear_error();
  errno = 0;
  const int result = SSL_do_handshake(ssl_);
  const int error = errno;
  buffer_.hand_over();
  const bool is_sent = buffer_.push();
  const bool wants_write = !is_sent && errno == EAGAIN;
  errno = error;
  const int outcome = SSL_get_error(ssl_, result);
  switch (outcome) {
    case SSL_ERROR_NONE:
      buffer_.limit_received(~size_t{0});
      if (is_sent) return Progress::kDone;
      [[fallthrough]];
    case SSL_ERROR_WANT_READ:
      if (wants_write) return Progress::kWantsWrite;
      if (outcome == SSL_ERROR_WANT_READ) return Progress::kWantsRead;
      [[fallthrough]];
    case SSL_ERROR_SYSCALL:
      return Status(Code::kUnavailable,
                    "the peer closed the connection in the TLS handshake; see its log");
    default:
      break;
  }
  if (ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_WRONG_VERSION_NUMBER) {
    ERR_clear_error();
    return Status(Code::kDenied,
                  "the peer does not speak TLS: is it an rcuda-server that listens for other "
                  "machines (--listen)? The server's log has its port (\"serving ... on\")");
  }
  return ssl_error("the TLS handshake failed");
}

Key Connection::exported(const char* label) const {
  Key key{};
  // Fails only before the end of the handshake, or if there is no memory. A failure aborts the
  // process, because a key of zeros would be known to attackers.
  if (SSL_export_keying_material(ssl_, key.data(), key.size(), label, std::strlen(label), nullptr,
                                 0, 0) != 1) {
    std::abort();
  }
  return key;
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
      // messages inside of the records report the end, and a truncated stream looks like a lost
      // peer.
      ERR_clear_error();
      errno = error;
      return error ? -1 : 0;
    default:  // a forged or broken record
      ERR_clear_error();
      errno = EPROTO;
      return -1;
  }
}

// Queues a KeyUpdate before the next records, which use the new key.
void Connection::renew_key() {
  if (SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) == 1 && SSL_do_handshake(ssl_) == 1) {
    records_ = 0;
  }
  ERR_clear_error();
}

int Connection::seal_record(const void* data, size_t bytes) {
  if (records_ >= records_per_key_) renew_key();
  ERR_clear_error();
  errno = 0;
  const int sealed = outcome(SSL_write(ssl_, data, static_cast<int>(bytes)));
  if (sealed > 0) ++records_;
  return sealed;
}

// Makes records of the first bytes of `pieces`. Returns the number of bytes.
ssize_t Connection::seal(std::span<const iovec> pieces) {
  if (!record_) record_ = std::make_unique<std::byte[]>(kRecordBytes);
  ssize_t sealed = 0;
  size_t at = 0;  // in the first of the pieces
  for (size_t i = 0; i < kRecordsOfSend && !pieces.empty(); ++i) {
    const void* data = record_.get();
    size_t bytes = 0;
    while (!pieces.empty() && bytes < kRecordBytes) {
      const auto* const from = static_cast<const std::byte*>(pieces.front().iov_base) + at;
      const size_t some = std::min(pieces.front().iov_len - at, kRecordBytes - bytes);
      if (some == kRecordBytes) {
        data = from;
      } else if (some != 0) {
        std::memcpy(record_.get() + bytes, from, some);
      }
      bytes += some;
      at += some;
      if (at < pieces.front().iov_len) break;
      pieces = pieces.subspan(1);
      at = 0;
    }
    if (bytes == 0) break;
    const int record = seal_record(data, bytes);
    if (record == 0) errno = EPIPE;
    if (record <= 0) return -1;
    sealed += record;
  }
  return sealed;
}

ssize_t Connection::send(std::span<const iovec> pieces) {
  if (!buffer_.push()) return -1;
  if (begun_ == 0) {
    MutexLock lock(mutex_);
    buffer_.set_sealing(true);
    const ssize_t sealed = seal(pieces);
    buffer_.set_sealing(false);
    if (sealed <= 0) return sealed;
    begun_ = sealed;
    buffer_.hand_over();
  }
  if (!buffer_.push()) return -1;
  return std::exchange(begun_, 0);
}

// A thread that polls an empty socket, or waits for it, must not hold the mutex during the system
// call: the sending thread would find it locked, and sleep.
ssize_t Connection::recv(void* data, size_t bytes, bool peek, bool wait) {
  if (bytes == 0) return 0;
  const int most = static_cast<int>(std::min(bytes, kRecordBytes));
  for (;;) {
    if (is_drained_) {
      if (const ssize_t filled = buffer_.fill(wait); filled <= 0) return filled;
    }
    MutexLock lock(mutex_);
    ERR_clear_error();
    errno = 0;
    const ssize_t got = outcome(peek ? SSL_peek(ssl_, data, most) : SSL_read(ssl_, data, most));
    const bool lacks_bytes = got < 0 && errno == EAGAIN;
    const bool has_taken_record = got > 0 && !peek && (got < most || bytes >= kRecordBytes);
    is_drained_ = lacks_bytes || has_taken_record;
    if (lacks_bytes && wait) continue;
    // OpenSSL also returns without bytes after a KeyUpdate. If the next record has been received
    // already, reads it.
    if (!lacks_bytes || !buffer_.has_bytes()) return got;
  }
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
    if (ready < 0 && errno != EINTR) {
      return Status::from_errno(errno, "waiting for the peer in the TLS handshake (poll)");
    }
  }
}

}  // namespace rcuda::tls
