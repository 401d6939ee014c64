// TcpLink: the Link over TCP. The control socket becomes an ordered stream of puts in each
// direction (tcp_messages.h).
//
// TcpSender gathers outgoing puts. For incoming puts, a thread copies small puts out of a buffer
// that one recv() has filled, and receives large puts directly into the window. This thread sends
// nothing while the Link works, so full sockets on both sides do not cause a deadlock. Transfers
// use other sockets (tcp_bulk.h).
//
// The Link detects a dead peer by the end of the stream, a stopped peer by missing heartbeats, and
// a lost host by unanswered probes and segments of the kernel.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/socket.h"
#include "common/transport/link_core.h"
#include "common/transport/mapping.h"
#include "common/transport/tcp/adaptive_spin.h"
#include "common/transport/tcp/exposed_regions.h"
#include "common/transport/tcp/lent_memory.h"
#include "common/transport/tcp/medium.h"
#include "common/transport/tcp/reconnects.h"
#include "common/transport/tcp/socket_order.h"
#include "common/transport/tcp/tcp_bulk.h"
#include "common/transport/tcp/tcp_messages.h"
#include "common/transport/tcp/tcp_sender.h"

namespace rcuda::transport {

// Returns the time between two checks of the peer by the receiving thread. If `peer_timeout` is
// zero, the peer may be silent, and only its host is checked. This check is more frequent with
// `reconnects`, because the loss of a connection does not end such a Link.
std::chrono::milliseconds silence_checks(std::chrono::milliseconds peer_timeout, bool reconnects);

class TcpLink final : public LinkCore {
 public:
  using Clock = std::chrono::steady_clock;
  struct Setup {
    std::unique_ptr<Reconnects> reconnects;  // of control and streams; null: they do not reconnect
    Socket control;
    std::vector<Socket> streams;
    Mapping window;
    size_t peer_window_bytes = 0;
    std::chrono::milliseconds heartbeat{0};
    std::chrono::milliseconds peer_timeout{0};
    std::chrono::nanoseconds receive_spin{0};  // LinkOptions::receive_spin
    WindowPart answers;
    std::string remedy_for_silence;
  };

  explicit TcpLink(Setup setup);
  ~TcpLink() override;
  Status start();

  const MediumTraits& traits() const override { return tcp::kTraits; }
  std::span<std::byte> window() override { return {window_.data(), window_.size()}; }
  size_t peer_window_bytes() const override { return peer_window_bytes_; }
  Status put(uint64_t offset, std::span<const Bytes> pieces, Wake wake) override;
  Status put_region(RegionId region, uint64_t offset, Bytes bytes) override;
  void flush() override { sender_.flush(); }
  bool is_connected() const override { return control_.is_connected(); }
  Result<Region> expose(void* base, size_t bytes, int backing, uint64_t backing_offset) override;
  Status unexpose(RegionId region) override;
  void lend(const void* base, size_t bytes) override {
    if (reconnects_) lent_.add(base, bytes);
  }
  void take_back(const void* base, size_t bytes) override;
  Result<void*> map(RegionId, size_t, void*) override { return static_cast<void*>(nullptr); }
  Status unmap(RegionId) override {
    return {Code::kNotFound, "a connection over tcp has no mapped regions"};
  }
  void write(RegionId region, uint64_t offset, const void* local, size_t bytes,
             TransferDone done) override;
  void read(RegionId region, uint64_t offset, void* local, size_t bytes,
            TransferDone done) override;
  void write_with_immediate(RegionId region, uint64_t offset, const void* local, size_t bytes,
                            uint32_t immediate, Company company, TransferDone done) override;
  void write_in_order(RegionId region, uint64_t offset, const void* local, size_t bytes,
                      TransferDone done) override;
  void announce_silence(bool silent) override;
  void close() override;
  void abandon() noexcept override;

 private:
  void on_broken() override;
  void before_sleep() override { sender_.flush(); }
  void acknowledge();
  void transfer(const TransferRequest& what, TransferDone done);
  TransferDone counting(size_t bytes, TransferDone done);
  // A peer that closes in answer to a farewell is not lost.
  void lost(const std::string& why) { fail(closing_ ? End::kIntended : End::kLost, why); }
  void bulk_lost(const std::string& why);

  // The receiving thread. Functions return the reason why the stream ended, or an empty string.
  void receive();
  std::string fill();
  std::string take_puts();
  std::string take_large_put(const PutHeader& header);
  std::string take_region_put(const PutHeader& header, bool* whole);
  std::string take_end_of_write(const PutHeader& header, bool* whole);
  std::string take_acknowledgement(const PutHeader& header, bool* whole);
  std::string last_message(const PutHeader& header);
  std::string discard();
  std::string receive_some(std::byte* data, size_t bytes, size_t* received);
  // Returns why the peer is lost at `now`, or nothing.
  std::string check_peer(Clock::time_point now);
  bool limits_silence() const { return peer_timeout_.count() != 0 && !peer_may_be_silent_; }
  bool is_overdue(Clock::time_point now) const;
  void allow_silence(bool may_be_silent);
  bool lose_connections(const std::string& why);

  const std::unique_ptr<Reconnects> reconnects_;
  const Socket control_;
  const Mapping window_;
  const size_t peer_window_bytes_;
  const std::chrono::milliseconds peer_timeout_;
  AdaptiveSpin receive_spin_;  // of the receiving thread
  const WindowPart answers_;
  const std::string remedy_for_silence_;
  DoorbellState doorbell_state_;
  DoorbellState elsewhere_state_;
  ExposedRegions regions_;
  LentMemory lent_;
  SocketOrder order_;  // counts the messages that this side receives
  // Held while a put into a region, or the end of a write in order, is counted and enters the
  // control stream. sent_in_order_ is raised only after that. So the peer never waits for a count
  // (BulkHeader::after_puts) whose message is not in the control stream yet.
  Mutex sent_mutex_;
  SentOrder sent_order_ RCUDA_GUARDED_BY(sent_mutex_);
  std::atomic<uint32_t> sent_in_order_{0};  // sent_order_'s count; raised with sent_mutex_ held
  // The number of writes in order that are not yet sent, and whether new writes are accepted.
  int unsent_writes_ RCUDA_GUARDED_BY(end_mutex_) = 0;
  bool takes_writes_ RCUDA_GUARDED_BY(end_mutex_) = true;
  CondVar writes_sent_;
  Mutex put_mutex_;
  Mutex end_mutex_;
  CondVar receiver_ended_;
  bool receiver_over_ RCUDA_GUARDED_BY(end_mutex_) = false;
  std::atomic<bool> closing_{false};
  // Declared after the members above, which the threads of sender_ and bulk_ use.
  TcpSender sender_;
  TcpBulk bulk_;

  std::thread receiver_;
  std::vector<std::byte> buffer_;
  size_t begin_ = 0;  // start of the unread bytes in the buffer
  size_t end_ = 0;
  bool farewell_ = false;
  bool peer_may_be_silent_ = false;
  bool gives_up_ = false;  // the peer has been silent for too long
  Clock::time_point last_heard_;
  uint32_t heard_over_ = 1;  // Socket::connections() at the last check
};

}  // namespace rcuda::transport
