// ResumableSocket: a byte stream that survives the loss of its connection.
//
// Each side counts the bytes that it has sent and received, and retains the bytes that it has sent,
// or their addresses, until the peer has acknowledged them (retained_bytes.h). After a loss, both
// sides get the next connection (reconnects.h), exchange how many bytes they have received, and
// send the missing bytes again. So the stream has no gap and no repetition, wherever the connection
// was cut, and the stream's users notice only that a call takes longer.
//
// The layer adds no bytes to the first connection. Acknowledgements use another socket of the Link
// (Reconnects), so that the stream's own bytes do not delay them.
//
// Threads: as Socket; at the first loss, the stream starts a thread that gets the next connections.
// Blocking: as Socket; without MSG_DONTWAIT, also while there is no connection, and send() while no
// more bytes can be retained. Errors: after the end, recv() returns 0, send() fails with EPIPE, and
// why_ended() returns the reason. States: resumable_state.h.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>

#include "common/base/mutex.h"
#include "common/base/socket.h"
#include "common/base/status.h"
#include "common/transport/tcp/resumable_state.h"
#include "common/transport/tcp/retained_bytes.h"

namespace rcuda::transport {

class Reconnects;

class ResumableSocket final : public SocketLayer {
 public:
  // After this number of received bytes, the next put carries an acknowledgement. After half of the
  // bytes that the peer can copy and retain, this side sends an acknowledgement at once.
  static constexpr uint64_t kAcknowledgedByPut = 128u << 10;

  // `index`: of the socket in its session. `shared` outlives this object.
  ResumableSocket(Socket connection, RetainedBytes retained, uint32_t index, Reconnects& shared);
  ~ResumableSocket() override;

  ssize_t send(std::span<const iovec> pieces, int flags) override {
    return send(pieces, flags, {});
  }
  // As send() above, but retains the piece `kept` by its address only.
  ssize_t send(std::span<const iovec> pieces, int flags, const KeptPiece& kept);
  ssize_t recv(void* data, size_t bytes, int flags) override;
  bool wait(short events, int timeout_ms) override;
  // SHUT_WR: sends nothing more, except bytes that are being sent again. The stream ends at the
  // next loss of the connection, or now if the connection is lost. SHUT_RDWR: ends the stream.
  void shutdown(int how) override;
  bool lose(const std::string& why) override;
  bool is_connected() const override { return in(ResumableState::kConnected); }
  bool get_option(int level, int name, void* value, socklen_t* bytes) const override;
  // The next connections inherit TCP_USER_TIMEOUT only.
  bool set_option(int level, int name, int value) const override;
  uint32_t connections() const override { return connections_.load(std::memory_order_relaxed); }
  std::string why_ended() const override;
  void close_in_child() noexcept override;

  uint32_t index() const { return index_; }
  uint64_t received() const;
  // Returns received() if at least kAcknowledgedByPut of these bytes have not been acknowledged,
  // otherwise 0. The caller must send the acknowledgement.
  uint64_t take_unacknowledged();
  // The peer reports that it has received this many bytes. Returns false if fewer bytes were sent.
  bool acknowledge(uint64_t bytes);
  // The peer has answered the messages before `place`, so it has received those bytes. After the
  // return, no thread reads the memory of those bytes. Blocks while those bytes are being sent
  // again. If the peer has not received them, the stream ends when its next connection is made,
  // because the peer then reports fewer received bytes.
  void confirm(uint64_t place);
  // Copies the bytes of this memory that are retained by their address only (RetainedBytes::own()).
  void own(const void* begin, size_t bytes);
  // Call it on a stream that has ended. Blocks until no thread reads memory that was sent.
  void await_end();
  void end(const std::string& why);
  // Called when the peer has announced its end: the next loss ends the stream. If the connection is
  // already lost, the stream ends now.
  void expect_end();

 private:
  bool in(ResumableState state) const { return state_.get() == state; }
  void leave_locked() RCUDA_REQUIRES(mutex_);
  void acknowledge_locked(uint64_t bytes) RCUDA_REQUIRES(mutex_);
  void lose_locked(uint32_t connection, const std::string& why) RCUDA_REQUIRES(mutex_);
  void end_locked(const std::string& why) RCUDA_REQUIRES(mutex_);
  bool can(short events) const RCUDA_REQUIRES(mutex_);
  uint64_t room() const RCUDA_REQUIRES(mutex_) {
    return retained_.window() - (sent_ - acknowledged_);
  }
  std::string send_part(const RetainedBytes::Part& part, uint64_t* from) const;
  // Run on the stream's own thread.
  void run();
  bool reconnect(MutexLock& lock) RCUDA_REQUIRES(mutex_, lock);
  Status agree(const Socket& next, uint64_t received, uint64_t* peer_received) const;
  void await_last_bytes(MutexLock& lock) RCUDA_REQUIRES(mutex_, lock);
  bool resume(Socket next, uint64_t peer_received) RCUDA_REQUIRES(mutex_);
  void send_again(MutexLock& lock, uint64_t from) RCUDA_REQUIRES(mutex_, lock);

  static constexpr uint64_t kNothingResent = ~uint64_t{0};

  const uint32_t index_;
  const std::string name_;  // for the log
  Reconnects& shared_;
  // Appended to by the sending thread; read by the stream's thread while no thread sends.
  RetainedBytes retained_;
  // Replaced only in kLost, while users_ is 0.
  Socket connection_;
  std::atomic<uint32_t> connections_{1};  // so far

  mutable Mutex mutex_;
  CondVar changed_;
  StateWord<kResumableTransitions> state_;  // changed with mutex_ held
  int users_ RCUDA_GUARDED_BY(mutex_) = 0;  // threads that use connection_ without the mutex
  uint64_t sent_ RCUDA_GUARDED_BY(mutex_) = 0;
  // The position after the last byte that was given to connection_.send(). The peer cannot have
  // received more. It may have received more than sent_ while that call is in progress, or if a
  // cipher had begun to send bytes when the call returned EAGAIN.
  uint64_t offered_ RCUDA_GUARDED_BY(mutex_) = 0;
  // Bytes of the next send() that the peer has received over an earlier connection. sent_ includes
  // them.
  uint64_t ahead_ RCUDA_GUARDED_BY(mutex_) = 0;
  uint64_t acknowledged_ RCUDA_GUARDED_BY(mutex_) = 0;
  // While bytes are sent again: the place of the next bytes to send; earlier bytes are not read.
  uint64_t resent_ RCUDA_GUARDED_BY(mutex_) = kNothingResent;
  uint64_t received_ RCUDA_GUARDED_BY(mutex_) = 0;
  uint64_t told_ RCUDA_GUARDED_BY(mutex_) = 0;        // received_ in the last acknowledgement
  bool is_last_ RCUDA_GUARDED_BY(mutex_) = false;     // one side has announced its end
  bool shuts_down_ RCUDA_GUARDED_BY(mutex_) = false;  // shutdown(SHUT_WR) came during kResending
  // Reconnects::lost() was called, and back() has not been called since. Only the stream's thread
  // uses this member.
  bool is_reported_ = false;
  // In kLost: no more bytes of the lost connection are received.
  bool is_drained_ RCUDA_GUARDED_BY(mutex_) = false;
  std::string why_lost_ RCUDA_GUARDED_BY(mutex_);
  std::string why_ended_ RCUDA_GUARDED_BY(mutex_);
  std::thread thread_ RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::transport
