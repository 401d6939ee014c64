// TLS 1.3 connections over sockets (OpenSSL). docs/security.md says which connections use TLS.
//
// A client makes its first TLS connection with a door of the server (handshake.h). Over this
// connection, both sides prove their identity (proof.h). The connection then carries only the
// request of a tool, or the handshake of a session. Both ends derive the session's key from the
// connection's secrets. The session's Links are TLS connections with this key, on the same and on
// further sockets (keyed.h), because a worker process cannot take over the state of the door's
// connection.
//
// Threads: one thread during the handshake, then one sending and one receiving thread. Only recv()
// and the function shake_hands() outside of the class may block. OpenSSL's own configuration file
// is not read, its exit handler is not installed (a session ends after exit handlers have run), and
// no function raises SIGPIPE.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/base/mutex.h"
#include "common/base/socket.h"
#include "common/base/status.h"
#include "common/tls/record_buffer.h"

typedef struct ssl_st SSL;
typedef struct ssl_ctx_st SSL_CTX;

namespace rcuda::tls {

// Secret of a session, or a value that only the two ends of a connection know.
using Key = std::array<uint8_t, 32>;

// Labels of Connection::exported(): for the session's key, and for the value from which the binding
// is computed (proof.h).
inline constexpr char kSessionLabel[] = "EXPORTER-rcuda-session";
inline constexpr char kProofLabel[] = "EXPORTER-rcuda-proof";

enum class Role : uint8_t { kClient, kServer };

class Connection final : public Cipher {
 public:
  // `socket` stays open as long as the connection, which holds a reference to `context`.
  // `reads_ahead`: receives more bytes at once than the caller asks for, so nothing else may
  // receive from the socket later.
  static Result<std::unique_ptr<Connection>> create(SSL_CTX* context, int socket, Role role,
                                                    bool reads_ahead = false);
  ~Connection() override;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  enum class Progress : uint8_t { kDone, kWantsRead, kWantsWrite };
  // Continues the handshake. An error says why this side refused the peer, or that the peer refused
  // this side.
  Result<Progress> shake_hands();
  // Limits the bytes that this side receives in the handshake. For connections without
  // `reads_ahead`, before the handshake.
  void limit_handshake(size_t most) { buffer_.limit_received(most); }
  // After the handshake: a value that only both ends can compute, a different one for each label.
  Key exported(const char* label) const;
  // This side renews its sending key after this number of records. RFC 8446, section 5.5, allows at
  // most 2^24.5 full records for AES-GCM, which one socket can send in a few minutes.
  static constexpr uint64_t kRecordsPerKey = 1 << 23;
  void renew_key_after(uint64_t records) { records_per_key_ = records; }
  SSL* ssl() const { return ssl_; }

  ssize_t send(std::span<const iovec> pieces) override;
  ssize_t recv(void* data, size_t bytes, bool peek, bool wait) override;
  bool has_received() const override { return !is_drained_ || buffer_.has_bytes(); }

 private:
  explicit Connection(RecordBuffer buffer) : buffer_(std::move(buffer)) {}
  int outcome(int result) const;
  ssize_t seal(std::span<const iovec> pieces) RCUDA_REQUIRES(mutex_);
  int seal_record(const void* data, size_t bytes) RCUDA_REQUIRES(mutex_);
  void renew_key() RCUDA_REQUIRES(mutex_);

  RecordBuffer buffer_;
  SSL* ssl_ = nullptr;
  // OpenSSL's object serves one thread at a time. The longest call with the mutex held makes the
  // records of one send().
  Mutex mutex_;
  // Sending thread only: bytes whose records are in the buffer, but which send() has not returned
  // as sent.
  ssize_t begun_ = 0;
  // Receiving thread only: OpenSSL has no decrypted bytes, so the next bytes come from the socket.
  bool is_drained_ = false;
  std::unique_ptr<std::byte[]> record_ RCUDA_GUARDED_BY(mutex_);  // gathers small pieces
  uint64_t records_ RCUDA_GUARDED_BY(mutex_) = 0;                 // made with the current key
  uint64_t records_per_key_ = kRecordsPerKey;
};

// Shakes hands on a connected socket until it is done, or until the deadline (kTimeout).
Status shake_hands(Connection& connection, int socket,
                   std::chrono::steady_clock::time_point deadline);

}  // namespace rcuda::tls
