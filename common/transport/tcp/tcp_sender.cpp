#include "common/transport/tcp/tcp_sender.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "common/base/cpu_pause.h"
#include "common/base/socket_io.h"
#include "common/base/start_thread.h"

namespace rcuda::transport {
namespace {

// Puts that follow each other within this time are a burst. A send costs 3 to 10 us, so gathering
// the puts of a burst saves time. Two calls of a thread that waits for the answers are further
// apart.
constexpr auto kBurstGap = std::chrono::microseconds(10);
// From this put of a run (tcp_sender.h) on, waking the flusher pays off: a wake-up may cost as much
// as five sends.
constexpr int kRun = 8;
// How long the flusher stays awake after a burst, so that the next burst needs no wake-up.
constexpr auto kLinger = std::chrono::microseconds(50);
constexpr size_t kMaxPieces = kMaxPutPieces + 1;

// Locks a mutex that other threads hold for less than a microsecond. Polls before it sleeps.
void lock_soon(MutexLock& lock) RCUDA_ACQUIRE(lock) {
  constexpr int kTries = 200;
  for (int i = 0; i < kTries; ++i) {
    if (lock.try_lock()) return;
    cpu_pause();
  }
  lock.lock();
}

}  // namespace

TcpSender::TcpSender(const Socket& socket, Bytes heartbeat, std::chrono::milliseconds interval,
                     std::chrono::nanoseconds hand_over,
                     std::function<void(const std::string&)> on_error)
    : socket_(socket),
      interval_(interval),
      hand_over_(hand_over),
      on_error_(std::move(on_error)),
      heartbeat_(heartbeat) {}

std::string TcpSender::why(int error) const {
  const std::string ended = socket_.why_ended();
  return ended.empty() ? std::strerror(error) : ended;
}

Status TcpSender::start() {
  {
    MutexLock lock(mutex_);
    last_send_ = Clock::now();
  }
  return start_thread(&flusher_, [this] { run(); });
}

void TcpSender::change_heartbeat(Bytes heartbeat) {
  {
    MutexLock lock(mutex_);
    heartbeat_ = heartbeat;
  }
  (void)send({&heartbeat, 1}, heartbeat.size(), Wake::kNow);
}

void TcpSender::append(std::span<const Bytes> pieces, size_t skip) {
  for (Bytes piece : pieces) {
    const size_t skipped = std::min(skip, piece.size());
    skip -= skipped;
    piece = piece.subspan(skipped);
    if (piece.empty()) continue;
    pending_.insert(pending_.end(), piece.begin(), piece.end());
  }
}

bool TcpSender::send(std::span<const Bytes> pieces, size_t total, Wake wake) {
  if (wake == Wake::kWithNext) return keep(pieces, total);
  bool urgent = wake == Wake::kNow || wake == Wake::kHandOver;
  MutexLock lock(mutex_, std::defer_lock);
  lock_soon(lock);
  const Clock::time_point now = Clock::now();
  const auto gap = now - std::exchange(last_put_, now);
  if (stopped_) return false;
  run_ = wake != Wake::kNow && gap < hand_over_ ? run_ + 1 : 0;
  const bool close = run_ >= (wake == Wake::kHandOver ? 1 : kRun);
  if (close && flusher_awake_) {
    urgent = false;
  } else if ((urgent || gap >= kBurstGap) && idle()) {
    if (close) flusher_asleep_ = false;
    const bool sent = send_now(lock, pieces, total);
    if (close) flusher_wanted_.notify_one();  // the flusher sends the next puts
    return sent;
  }

  if (!make_room(lock, total)) return false;
  append(pieces, 0);
  if (urgent && !sending_) {
    flush(lock);
  } else {
    call_flusher(lock);
  }
  return true;
}

bool TcpSender::keep(std::span<const Bytes> pieces, size_t total) {
  MutexLock lock(mutex_, std::defer_lock);
  lock_soon(lock);
  if (stopped_ || !make_room(lock, total)) return false;
  append(pieces, 0);
  return true;
}

// A message larger than the buffer is accepted when the buffer is empty.
bool TcpSender::make_room(MutexLock& lock, size_t total) {
  while (!pending_.empty() && pending_.size() + total > kMaxPending) {
    if (sending_) {
      space_.wait(lock);
    } else {
      drain(lock, Clock::time_point::max());
    }
    if (stopped_) return false;
  }
  return true;
}

// Releases the lock before it calls the flusher, because a lingering flusher takes the lock at
// once. If the flusher found the mutex locked and slept, both threads would lose more time than a
// send takes.
void TcpSender::call_flusher(MutexLock& lock) {
  const bool asleep = std::exchange(flusher_asleep_, false);
  lock.unlock();
  called_.store(true, std::memory_order_release);
  if (asleep) flusher_wanted_.notify_one();
}

bool TcpSender::send_now(MutexLock& lock, std::span<const Bytes> pieces, size_t total) {
  std::array<iovec, kMaxPieces> vectors;
  const size_t count = std::min(pieces.size(), kMaxPieces);
  for (size_t i = 0; i < count; ++i) {
    vectors[i] = {const_cast<std::byte*>(pieces[i].data()), pieces[i].size()};
  }
  sending_ = true;
  lock.unlock();
  const ssize_t result = socket_.send(std::span(vectors).first(count), MSG_DONTWAIT);
  const int error = errno;
  lock_soon(lock);
  sending_ = false;
  last_send_ = Clock::now();
  last_put_ = last_send_;
  if (result < 0 && error != EAGAIN && error != EINTR) {
    stopped_ = true;
    space_.notify_all();
    lock.unlock();
    on_error_(why(error));
    return false;
  }
  const size_t sent = result < 0 ? 0 : static_cast<size_t>(result);
  if (sent < total) {
    // Messages that other threads have appended follow the rest of this message.
    outgoing_.clear();
    sent_ = 0;
    std::swap(outgoing_, pending_);
    append(pieces, sent);
    pending_.insert(pending_.end(), outgoing_.begin(), outgoing_.end());
    outgoing_.clear();
  }
  space_.notify_all();
  pending_.empty() ? lock.unlock() : call_flusher(lock);
  return true;
}

bool TcpSender::send_outgoing(Clock::time_point deadline) {
  while (sent_ < outgoing_.size()) {
    const ssize_t result =
        socket_.send(outgoing_.data() + sent_, outgoing_.size() - sent_, MSG_DONTWAIT);
    if (result > 0) {
      sent_ += static_cast<size_t>(result);
    } else if (errno == EAGAIN) {
      if (!socket_.wait(POLLOUT, poll_timeout_ms(deadline))) return true;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

void TcpSender::drain(MutexLock& lock, Clock::time_point deadline) {
  sending_ = true;
  while (!stopped_) {
    if (sent_ == outgoing_.size()) {
      outgoing_.clear();
      sent_ = 0;
      if (pending_.empty()) break;
      std::swap(outgoing_, pending_);
      space_.notify_all();
    }
    lock.unlock();
    const bool good = send_outgoing(deadline);
    const int error = errno;
    lock_soon(lock);
    last_send_ = Clock::now();
    if (!good) {
      stopped_ = true;
      lock.unlock();
      on_error_(why(error));
      lock.lock();
    } else if (sent_ != outgoing_.size()) {
      break;  // the deadline passed
    }
  }
  sending_ = false;
  space_.notify_all();
}

void TcpSender::flush() {
  MutexLock lock(mutex_);
  flush(lock);
}

void TcpSender::flush(MutexLock& lock) {
  if (!stopped_ && !sending_ && !idle()) {
    drain(lock, Clock::now());
    if (!idle()) return call_flusher(lock);
  }
  lock.unlock();
}

void TcpSender::finish(Bytes farewell, Clock::time_point deadline) {
  MutexLock lock(mutex_);
  space_.wait_until(lock, deadline,
                    [this]() RCUDA_REQUIRES(mutex_) { return stopped_ || !sending_; });
  if (!stopped_ && !sending_) {
    append(std::span(&farewell, 1), 0);
    drain(lock, deadline);
  }
  stopped_ = true;
  space_.notify_all();
  flusher_wanted_.notify_all();
}

void TcpSender::stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  space_.notify_all();
  flusher_wanted_.notify_all();
}

void TcpSender::join() {
  if (flusher_.joinable()) flusher_.join();
}

void TcpSender::run() {
  ::pthread_setname_np(::pthread_self(), "rcuda-tcp-send");
  MutexLock lock(mutex_);
  Clock::time_point linger_until{};
  while (!stopped_) {
    if (!sending_ && !idle()) {
      drain(lock, Clock::time_point::max());
      linger_until = Clock::now() + std::max<std::chrono::nanoseconds>(hand_over_, kLinger);
      continue;
    }
    const Clock::time_point now = Clock::now();
    if (now < linger_until) {
      called_.store(false, std::memory_order_relaxed);
      lock.unlock();
      while (!called_.load(std::memory_order_acquire) && Clock::now() < linger_until) {
        std::this_thread::yield();
      }
      lock_soon(lock);
      continue;
    }
    flusher_asleep_ = true;
    flusher_awake_ = false;
    const auto is_called = [this]() RCUDA_REQUIRES(mutex_) { return stopped_ || !flusher_asleep_; };
    const Clock::time_point heartbeat_at = (sending_ ? now : last_send_) + interval_;
    bool called = true;
    if (interval_.count() == 0) {
      flusher_wanted_.wait(lock, is_called);
    } else {
      called = flusher_wanted_.wait_until(lock, heartbeat_at, is_called);
    }
    flusher_awake_ = true;
    if (called) {
      linger_until = Clock::now() + hand_over_;
      continue;
    }
    flusher_asleep_ = false;
    if (idle() && Clock::now() >= last_send_ + interval_) append(std::span(&heartbeat_, 1), 0);
  }
}

}  // namespace rcuda::transport
