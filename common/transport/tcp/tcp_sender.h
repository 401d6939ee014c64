// TcpSender: the sending half of a TCP Link's control stream; gathers small puts into large sends.
//
// A put that finds the stream quiet is sent by its own thread at once. Puts that follow each other
// closely (a burst of posted launches) are only appended to a buffer, about 50 ns each, and a
// flusher thread sends whatever has gathered while its previous send ran. A put whose answer is
// waited for is sent by its own thread with everything before it, because waking the flusher takes
// longer than sending. A thread about to sleep in Link::wait flushes as well.
//
// Puts that may be handed over (Wake::kHandOver) and come closer to one another than `hand_over`
// wake the flusher, which stays awake for as long, and are left to it while it is.
//
// send() may be called from any thread; it blocks while kMaxPending bytes wait for the peer. The
// flusher also sends the signs of life. Errors go to the callback, on the thread that met them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/transport/link.h"

namespace rcuda::transport {

class TcpSender {
 public:
  using Clock = std::chrono::steady_clock;

  // `heartbeat` is sent when nothing else was for `interval` (zero: never). The socket outlives
  // this.
  TcpSender(int socket, Bytes heartbeat, std::chrono::milliseconds interval,
            std::chrono::nanoseconds hand_over, std::function<void(const std::string&)> on_error);

  Status start();
  // `pieces` make one message of `total` bytes, which is not held back if somebody waits for what
  // becomes of it. Returns false once stopped.
  bool send(std::span<const Bytes> pieces, size_t total, Wake wake);
  // Sends what is gathered as far as the socket takes it without blocking.
  void flush();
  // Sends what is gathered and `farewell`, until the deadline at most, then stops.
  void finish(Bytes farewell, Clock::time_point deadline);
  // Makes every call return; the owner has shut the socket down.
  void stop();
  // Returns when the flusher has ended, which stop(), finish() or an error makes it do. Comes
  // before the end of this object.
  void join();

 private:
  static constexpr size_t kMaxPending = 1u << 20;

  using Lock = std::unique_lock<std::mutex>;
  bool idle() const { return !sending_ && outgoing_.size() == sent_ && pending_.empty(); }
  void call_flusher(Lock& lock);
  bool send_now(Lock& lock, std::span<const Bytes> pieces, size_t total);
  void drain(Lock& lock, Clock::time_point deadline);
  void flush(Lock& lock);
  bool send_outgoing(Clock::time_point deadline);
  void append(std::span<const Bytes> pieces, size_t skip);
  void run();

  const int socket_;
  const Bytes heartbeat_;
  const std::chrono::milliseconds interval_;
  const std::chrono::nanoseconds hand_over_;
  const std::function<void(const std::string&)> on_error_;
  std::thread flusher_;
  std::atomic<bool> called_{false};  // for a flusher that lingers, which leaves the lock to others

  std::mutex mutex_;  // guards everything below, but see outgoing_
  std::condition_variable flusher_wanted_;
  std::condition_variable space_;
  std::vector<std::byte> pending_;
  std::vector<std::byte> outgoing_;  // of the thread that set sending_; sent before pending_
  size_t sent_ = 0;                  // of outgoing_
  bool sending_ = false;
  bool flusher_asleep_ = false;  // and nobody has called it
  bool flusher_awake_ = false;   // a called one takes its time to wake up
  bool stopped_ = false;
  Clock::time_point last_put_{};
  Clock::time_point last_send_{};
};

}  // namespace rcuda::transport
