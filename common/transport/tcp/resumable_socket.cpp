#include "common/transport/tcp/resumable_socket.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include "common/base/socket_io.h"
#include "common/base/start_thread.h"
#include "common/transport/tcp/reconnects.h"
#include "common/transport/tcp/tcp_messages.h"
#include "common/transport/violation.h"

namespace rcuda::transport {
namespace {

using Clock = std::chrono::steady_clock;

// The time limit of agree().
constexpr auto kAgreement = std::chrono::seconds(5);
// The pause after a connection on which agree() failed.
constexpr auto kPause = std::chrono::milliseconds(50);
constexpr size_t kMostPieces = 16;
// The most bytes that one call sends again. Their region is pinned during the call.
constexpr size_t kMostPinned = 1u << 20;

bool is_temporary(int error) { return error == EAGAIN || error == EINTR; }

std::string text_of(ssize_t result, int error) {
  return result == 0 ? "the peer closed the connection" : std::strerror(error);
}

}  // namespace

ResumableSocket::ResumableSocket(Socket connection, RetainedBytes retained, uint32_t index,
                                 Reconnects& shared)
    : index_(index),
      name_("socket " + std::to_string(index)),
      shared_(shared),
      retained_(std::move(retained)),
      connection_(std::move(connection)) {}

ResumableSocket::~ResumableSocket() {
  std::thread thread;
  {
    MutexLock lock(mutex_);
    end_locked("this side closed the connection");
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

void ResumableSocket::leave_locked() {
  if (--users_ == 0) changed_.notify_all();
}

// Handles the loss of a connection. `connection`: its number; a loss of an earlier connection than
// the current one is ignored.
void ResumableSocket::lose_locked(uint32_t connection, const std::string& why) {
  if (connection != connections_ || in(ResumableState::kLost)) return;
  if (is_last_) return end_locked(why);
  if (!state_.move(ResumableEvent::kLoss, name_)) return;
  why_lost_ = why;
  is_drained_ = false;
  connection_.shutdown(SHUT_RDWR);
  changed_.notify_all();
  if (thread_.joinable()) return;
  const Status started = start_thread(&thread_, [this] { run(); });
  if (!started.ok()) end_locked(started.context());
}

void ResumableSocket::end_locked(const std::string& why) {
  if (!state_.move(ResumableEvent::kEnd, name_)) return;
  why_ended_ = why;
  connection_.shutdown(SHUT_RDWR);
  changed_.notify_all();
}

bool ResumableSocket::can(short events) const {
  if (events & POLLIN) return !in(ResumableState::kLost) || !is_drained_;
  return in(ResumableState::kEnded) ||
         (in(ResumableState::kConnected) && room() != 0 && retained_.room() != 0);
}

ssize_t ResumableSocket::recv(void* data, size_t bytes, int flags) {
  MutexLock lock(mutex_);
  while (!in(ResumableState::kEnded)) {
    if (!can(POLLIN)) {
      if (flags & MSG_DONTWAIT) {
        errno = EAGAIN;
        return -1;
      }
      changed_.wait(lock);
      continue;
    }
    const uint32_t connection = connections_;
    ++users_;
    lock.unlock();
    const ssize_t count = connection_.recv(data, bytes, flags);
    const int error = errno;
    lock.lock();
    if (count > 0 && !(flags & MSG_PEEK)) received_ += static_cast<uint64_t>(count);
    leave_locked();
    if (count > 0) {
      const uint64_t received = received_;
      const uint64_t unacknowledged = received - told_;
      const bool is_urgent = unacknowledged >= retained_.bytes() / 2;
      if (is_urgent) told_ = received;
      lock.unlock();
      if (is_urgent) {
        shared_.acknowledge(index_, received);
      } else if (unacknowledged >= kAcknowledgedByPut) {
        shared_.note_due();
      }
      return count;
    }
    if (count < 0 && is_temporary(error)) {
      errno = error;
      return -1;
    }
    if (in(ResumableState::kLost)) {
      is_drained_ = true;
      changed_.notify_all();
    }
    lose_locked(connection, text_of(count, error));
  }
  return 0;
}

ssize_t ResumableSocket::send(std::span<const iovec> pieces, int flags, const KeptPiece& kept) {
  MutexLock lock(mutex_);
  while (!in(ResumableState::kEnded)) {
    if (!can(POLLOUT)) {
      if (flags & MSG_DONTWAIT) {
        errno = EAGAIN;
        return -1;
      }
      changed_.wait(lock);
      continue;
    }
    if (ahead_ != 0) return static_cast<ssize_t>(std::exchange(ahead_, 0));
    std::array<iovec, kMostPieces> some;
    size_t used = 0, left = room(), left_to_copy = retained_.room(), bytes = 0;
    for (bool is_whole = true; is_whole && used < std::min(pieces.size(), some.size()); ++used) {
      size_t& most = used == kept.index ? left : left_to_copy;
      const size_t part = std::min({pieces[used].iov_len, left, most});
      is_whole = part == pieces[used].iov_len;
      some[used] = {pieces[used].iov_base, part};
      left_to_copy -= used == kept.index ? 0 : part;
      left -= part;
      bytes += part;
    }
    const std::span<const iovec> sendable = std::span(some).first(used);
    const uint32_t connection = connections_;
    const uint64_t place = sent_;
    offered_ = std::max(offered_, place + bytes);
    ++users_;
    lock.unlock();
    const ssize_t count = connection_.send(sendable, flags);
    const int error = errno;
    if (count > 0) retained_.append(place, sendable, static_cast<size_t>(count), kept);
    lock.lock();
    if (count > 0) {
      sent_ += static_cast<uint64_t>(count);
      // The peer may have acknowledged the bytes before they were appended.
      if (acknowledged_ > place) retained_.release(acknowledged_);
    }
    leave_locked();
    if (count >= 0) return count;
    if (is_temporary(error)) {
      errno = error;
      return -1;
    }
    lose_locked(connection, text_of(count, error));
  }
  errno = EPIPE;
  return -1;
}

bool ResumableSocket::wait(short events, int timeout_ms) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  MutexLock lock(mutex_);
  const auto ready = [&]() RCUDA_REQUIRES(mutex_) { return can(events); };
  if (timeout_ms < 0) {
    changed_.wait(lock, ready);
  } else if (!changed_.wait_until(lock, deadline, ready)) {
    return false;
  }
  if (in(ResumableState::kEnded)) return true;
  ++users_;
  lock.unlock();
  const bool result = connection_.wait(events, timeout_ms < 0 ? -1 : poll_timeout_ms(deadline));
  lock.lock();
  leave_locked();
  return result;
}

void ResumableSocket::shutdown(int how) {
  MutexLock lock(mutex_);
  if (how != SHUT_WR || in(ResumableState::kLost)) {
    return end_locked("this side closed the connection");
  }
  is_last_ = true;
  // send_again() first sends its bytes, then shuts the connection down.
  if (in(ResumableState::kResending)) {
    shuts_down_ = true;
  } else {
    connection_.shutdown(how);
  }
}

bool ResumableSocket::lose(const std::string& why) {
  MutexLock lock(mutex_);
  lose_locked(connections_, why);
  return !in(ResumableState::kEnded);
}

std::string ResumableSocket::why_ended() const {
  MutexLock lock(mutex_);
  return why_ended_;
}

// Does not lock the mutex, which a thread of the parent may have held during the fork. If that
// thread was replacing connection_, the child may keep a descriptor of an ended connection.
void ResumableSocket::close_in_child() noexcept { connection_.close_in_child(); }

bool ResumableSocket::get_option(int level, int name, void* value, socklen_t* bytes) const {
  MutexLock lock(mutex_);
  return connection_.get_option(level, name, value, bytes);
}

bool ResumableSocket::set_option(int level, int name, int value) const {
  MutexLock lock(mutex_);
  return connection_.set_option(level, name, value);
}

uint64_t ResumableSocket::received() const {
  MutexLock lock(mutex_);
  return received_;
}

uint64_t ResumableSocket::take_unacknowledged() {
  MutexLock lock(mutex_);
  if (received_ - told_ < kAcknowledgedByPut) return 0;
  told_ = received_;
  return received_;
}

bool ResumableSocket::acknowledge(uint64_t bytes) {
  MutexLock lock(mutex_);
  if (bytes > offered_) return false;
  acknowledge_locked(bytes);
  return true;
}

void ResumableSocket::confirm(uint64_t place) {
  MutexLock lock(mutex_);
  changed_.wait(lock, [&]() RCUDA_REQUIRES(mutex_) { return resent_ >= place; });
  acknowledge_locked(place);
}

void ResumableSocket::acknowledge_locked(uint64_t bytes) {
  if (bytes <= acknowledged_) return;
  acknowledged_ = bytes;
  // Keep the bytes from resent_ on, because send_again() still reads them. The peer may acknowledge
  // some of these bytes: with a cipher, a send() that returns EAGAIN may have sent a part of its
  // bytes, and send_again() then repeats this send().
  retained_.release(std::min(bytes, resent_));
  changed_.notify_all();
}

void ResumableSocket::own(const void* begin, size_t bytes) {
  {
    MutexLock lock(mutex_);
    if (in(ResumableState::kEnded)) return;  // retained bytes are not sent after the end
  }
  retained_.own(begin, bytes);
}

void ResumableSocket::await_end() {
  MutexLock lock(mutex_);
  changed_.wait(lock, [&]() RCUDA_REQUIRES(mutex_) { return users_ == 0; });
}

void ResumableSocket::end(const std::string& why) {
  MutexLock lock(mutex_);
  end_locked(why);
}

void ResumableSocket::expect_end() {
  MutexLock lock(mutex_);
  is_last_ = true;
  if (in(ResumableState::kLost)) end_locked("the peer ended the session");
}

// ---- the stream's own thread --------------------------------------------------------------------

void ResumableSocket::run() {
  ::pthread_setname_np(::pthread_self(), "rcuda-resume");
  MutexLock lock(mutex_);
  const auto is_wanted = [&]() RCUDA_REQUIRES(mutex_) {
    return in(ResumableState::kLost) || in(ResumableState::kEnded);
  };
  const auto has_ended = [&]() RCUDA_REQUIRES(mutex_) { return in(ResumableState::kEnded); };
  while (true) {
    changed_.wait(lock, is_wanted);
    if (in(ResumableState::kEnded)) return;
    await_last_bytes(lock);
    if (changed_.wait_for(lock, Reconnects::kFarewellTime, has_ended)) return;
    if (!reconnect(lock)) return;
  }
}

// Waits until a receiving thread has read the bytes that the kernel still has of the lost
// connection, perhaps the peer's farewell. Bytes that the thread has not read after 20 ms are
// dropped, and the peer sends them again.
void ResumableSocket::await_last_bytes(MutexLock& lock) {
  constexpr auto kPatience = std::chrono::milliseconds(20);
  changed_.wait_for(lock, kPatience, [&]() RCUDA_REQUIRES(mutex_) {
    return is_drained_ || in(ResumableState::kEnded);
  });
  is_drained_ = true;
}

// Returns false once the stream has ended.
bool ResumableSocket::reconnect(MutexLock& lock) {
  changed_.wait(lock, [&]() RCUDA_REQUIRES(mutex_) { return users_ == 0; });
  // No thread uses the connection any more, so received_ and sent_ do not change.
  const std::string why = why_lost_;
  const uint64_t received = received_;
  lock.unlock();
  if (!std::exchange(is_reported_, true)) shared_.lost(why);
  const auto limit = Clock::now() + shared_.limit();
  const auto is_over = [this] { return in(ResumableState::kEnded); };
  Socket next;
  uint64_t peer_received = 0;
  Status status;
  while (true) {
    Result<Socket> connected = shared_.connect(index_, limit, is_over);
    status = connected.status();
    if (!status.ok()) break;
    next = *std::move(connected);
    status = agree(next, received, &peer_received);
    if (status.ok() || status.code() == Code::kProtocol || is_over()) break;
    std::this_thread::sleep_for(kPause);
  }
  lock.lock();
  if (status.ok() && !resume(std::move(next), peer_received)) {
    status = {
        Code::kProtocol,
        violation("the peer says that it has received bytes that "
                  "were not sent, or that it lacks bytes that it has acknowledged (it reports " +
                  std::to_string(peer_received) + " bytes of " + name_ + ")")};
  }
  if (!status.ok()) end_locked(status.context());
  if (in(ResumableState::kEnded)) return false;
  send_again(lock, peer_received);
  if (!in(ResumableState::kConnected)) return true;  // lost again, or ended
  lock.unlock();
  is_reported_ = false;
  shared_.back();
  lock.lock();
  return true;
}

// Exchanges with the peer how many bytes each side has received.
Status ResumableSocket::agree(const Socket& next, uint64_t received,
                              uint64_t* peer_received) const {
  const auto deadline = Clock::now() + kAgreement;
  const ResumeHello own{kResumeMagic, received};
  RCUDA_RETURN_IF_ERROR(send_all(next, bytes_of(own), deadline));
  ResumeHello peer;
  RCUDA_RETURN_IF_ERROR(recv_all(next, writable_bytes_of(peer), deadline));
  if (peer.magic != kResumeMagic) {
    return {Code::kProtocol, violation("the peer's new connection for " + name_ +
                                       " does not belong to this session")};
  }
  *peer_received = peer.received;
  return {};
}

bool ResumableSocket::resume(Socket next, uint64_t peer_received) {
  if (in(ResumableState::kEnded)) return true;
  if (peer_received < acknowledged_ || peer_received > offered_) return false;
  acknowledge_locked(peer_received);
  // The peer may have received bytes of a send() that returned EAGAIN. The caller offers these
  // bytes again, and send() then only reports them as sent. ahead_ may still have such bytes of an
  // earlier connection.
  const uint64_t more = peer_received - std::min(peer_received, sent_);
  ahead_ += more;
  sent_ += more;
  offered_ = sent_;
  told_ = received_;
  int limit = 0;  // changes while a peer may be silent (TcpLink::allow_silence)
  socklen_t size = sizeof limit;
  if (connection_.get_option(IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, &size)) {
    (void)next.set_option(IPPROTO_TCP, TCP_USER_TIMEOUT, limit);
  }
  connection_ = std::move(next);
  connections_.fetch_add(1, std::memory_order_relaxed);
  state_.move(ResumableEvent::kConnection, name_);
  changed_.notify_all();  // receiving threads go on
  return true;
}

void ResumableSocket::send_again(MutexLock& lock, uint64_t from) {
  const uint32_t connection = connections_;
  const uint64_t end = sent_;
  ++users_;
  std::string why;
  while (from != end && why.empty()) {
    resent_ = from;
    changed_.notify_all();
    lock.unlock();
    why = send_part(retained_.at(from), &from);
    lock.lock();
  }
  resent_ = kNothingResent;
  retained_.release(acknowledged_);
  changed_.notify_all();
  leave_locked();
  if (!why.empty()) return lose_locked(connection, why);
  if (!in(ResumableState::kResending)) return;  // lost again, or ended, meanwhile
  state_.move(ResumableEvent::kResent, name_);
  if (shuts_down_) connection_.shutdown(SHUT_WR);
  changed_.notify_all();
}

// Makes one attempt to send, and waits if the socket is full. If the region is retired, another
// thread is copying the bytes, and the next attempt finds the copy. Returns the reason if the
// connection failed.
std::string ResumableSocket::send_part(const RetainedBytes::Part& part, uint64_t* from) const {
  ssize_t count = 0;
  {
    std::optional<ExposedRegions::Pin> pin;
    if (part.region) pin.emplace(*part.region);
    if (pin && !*pin) return std::this_thread::yield(), std::string();
    count = connection_.send(part.data, std::min(part.bytes, kMostPinned), MSG_DONTWAIT);
  }
  if (count > 0) {
    *from += static_cast<uint64_t>(count);
  } else if (count == 0 || !is_temporary(errno)) {
    return text_of(count, errno);
  } else {
    (void)connection_.wait(POLLOUT, -1);
  }
  return {};
}

}  // namespace rcuda::transport
