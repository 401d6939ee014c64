// TcpSender: the sending half of a TCP Link's control stream. It gathers small puts into large
// sends.
//
// A put that does not closely follow another put is sent at once by the calling thread. Puts in a
// burst (posted launches) are only appended to a buffer, which takes about 50 ns each; a flusher
// thread sends the puts that gathered during its previous send. If a thread waits for the answer to
// a put, the calling thread sends it with all earlier puts, because waking the flusher takes longer
// than sending. A thread that is about to sleep in Link::wait flushes too.
//
// A run is a series of puts without Wake::kNow, each within `hand_over` of the previous put. Each
// put of a run from the kRun-th on wakes the flusher, and so does each put of a run with
// Wake::kHandOver. After each send, the flusher stays awake for `hand_over`, and sends the puts of
// that time. So the program's thread need not send. A send takes 3 to 10 us, a large part of the 10
// to 30 us between launches of PyTorch.
//
// Any thread may call send(), which blocks while kMaxPending bytes wait for the peer. The flusher
// also sends the heartbeats. Errors go to the callback, on the thread that detected them.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "common/transport/link.h"

namespace rcuda::transport {

class TcpSender {
 public:
  using Clock = std::chrono::steady_clock;

  // `heartbeat` is sent if nothing else was sent for `interval` (zero: never). The socket must
  // outlive this object.
  TcpSender(const Socket& socket, Bytes heartbeat, std::chrono::milliseconds interval,
            std::chrono::nanoseconds hand_over, std::function<void(const std::string&)> on_error);

  Status start();
  // `pieces` form one message of `total` bytes. The message is sent without delay if a thread waits
  // for the answer (`wake`). With Wake::kWithNext, the message is kept until the next put. Returns
  // false once stopped.
  bool send(std::span<const Bytes> pieces, size_t total, Wake wake);
  // Sends `heartbeat` now. From now on, it replaces the earlier heartbeat.
  void change_heartbeat(Bytes heartbeat);
  // Appends a message to the gathered bytes. It goes with the next send() or flush().
  bool keep(std::span<const Bytes> pieces, size_t total);
  // Sends gathered bytes until the socket is full, without blocking.
  void flush();
  // Sends gathered bytes and `farewell`, until the deadline at most, then stops.
  void finish(Bytes farewell, Clock::time_point deadline);
  // Makes all blocked calls return, after the owner has shut the socket down.
  void stop();
  // Returns when the flusher has ended; stop(), finish() or an error makes it end. Must be called
  // before the destructor.
  void join();

 private:
  static constexpr size_t kMaxPending = 1u << 20;

  bool make_room(MutexLock& lock, size_t total) RCUDA_REQUIRES(mutex_, lock);
  bool idle() const RCUDA_REQUIRES(mutex_) {
    return !sending_ && outgoing_.size() == sent_ && pending_.empty();
  }
  void call_flusher(MutexLock& lock) RCUDA_REQUIRES(mutex_) RCUDA_RELEASE(lock);
  bool send_now(MutexLock& lock, std::span<const Bytes> pieces, size_t total) RCUDA_REQUIRES(mutex_)
      RCUDA_RELEASE(lock);
  void drain(MutexLock& lock, Clock::time_point deadline) RCUDA_REQUIRES(mutex_, lock);
  void flush(MutexLock& lock) RCUDA_REQUIRES(mutex_) RCUDA_RELEASE(lock);
  bool send_outgoing(Clock::time_point deadline);
  void append(std::span<const Bytes> pieces, size_t skip) RCUDA_REQUIRES(mutex_);
  void run();
  std::string why(int error) const;  // why a send failed

  const Socket& socket_;
  const std::chrono::milliseconds interval_;
  const std::chrono::nanoseconds hand_over_;
  const std::function<void(const std::string&)> on_error_;
  std::thread flusher_;
  // Wakes a lingering flusher, which polls this without the lock.
  std::atomic<bool> called_{false};

  Mutex mutex_;
  CondVar flusher_wanted_;
  CondVar space_;
  std::vector<std::byte> pending_ RCUDA_GUARDED_BY(mutex_);
  // Used only by the thread that set sending_; sent before pending_.
  std::vector<std::byte> outgoing_;
  size_t sent_ = 0;  // bytes of outgoing_ that are sent
  bool sending_ RCUDA_GUARDED_BY(mutex_) = false;
  bool flusher_asleep_ RCUDA_GUARDED_BY(mutex_) = false;  // waits for flusher_wanted_
  // False while the flusher sleeps, and until it runs after a call.
  bool flusher_awake_ RCUDA_GUARDED_BY(mutex_) = false;
  bool stopped_ RCUDA_GUARDED_BY(mutex_) = false;
  Bytes heartbeat_ RCUDA_GUARDED_BY(mutex_);
  int run_ RCUDA_GUARDED_BY(mutex_) = 0;  // puts of the current run so far
  Clock::time_point last_put_ RCUDA_GUARDED_BY(mutex_){};
  Clock::time_point last_send_ RCUDA_GUARDED_BY(mutex_){};
};

}  // namespace rcuda::transport
