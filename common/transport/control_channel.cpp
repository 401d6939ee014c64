#include "common/transport/control_channel.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "common/base/socket_io.h"
#include "common/base/start_thread.h"
#include "common/base/units.h"
#include "common/transport/link_core.h"
#include "common/transport/violation.h"

namespace rcuda::transport {
namespace {

using Clock = std::chrono::steady_clock;

// The most queued messages. A working peer reads long before the queue has this length.
constexpr size_t kMaxQueued = 1u << 18;

}  // namespace

ControlChannel::ControlChannel(UniqueFd peer_process, Timing timing, Callbacks callbacks)
    : peer_process_(std::move(peer_process)), timing_(timing), callbacks_(std::move(callbacks)) {}

ControlChannel::~ControlChannel() { join(); }

Status ControlChannel::prepare() {
  poke_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!poke_) return Status::from_errno(errno, "making an eventfd for the control socket");
  return start_thread(&thread_, [this] { run(); });
}

void ControlChannel::begin(Socket socket) {
  MutexLock lock(mutex_);
  if (finished_) return;  // the return closes `socket`
  socket_ = std::move(socket);
  last_heard_ = last_sent_ = Clock::now();
  begun_ = true;
  begins_.notify_one();
}

void ControlChannel::poke() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(poke_.get(), &one, sizeof one);
}

void ControlChannel::send(const ControlMessage& message) { enqueue(message, UniqueFd()); }

Status ControlChannel::send(const ControlMessage& message, int fd) {
  UniqueFd kept;
  if (fd >= 0) {
    kept.reset(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!kept) {
      return Status::from_errno(errno, "duplicating the file descriptor of a region for the peer");
    }
  }
  enqueue(message, std::move(kept));
  return {};
}

void ControlChannel::enqueue(ControlMessage message, UniqueFd fd) {
  MutexLock lock(mutex_);
  // If the queue is full, the peer has stopped reading: drops the message.
  if (finished_ || queue_.size() >= kMaxQueued) return;
  message.has_fd = static_cast<bool>(fd);
  queue_.push_back({message, 0, std::move(fd)});
  (void)flush_locked();  // the channel's thread gets the same error and reports it
  if (!queue_.empty()) poke();
}

void ControlChannel::finish() {
  MutexLock lock(mutex_);
  if (std::exchange(finished_, true)) return;
  begins_.notify_one();
  if (!begun_) return;
  queue_.push_back({ControlMessage{.kind = ControlMessage::kFarewell}, 0, UniqueFd()});
  (void)flush_locked();
  queue_.clear();
  poke();
}

void ControlChannel::join() {
  finish();
  if (thread_.joinable()) thread_.join();
}

ControlMessage ControlChannel::heartbeat() const {
  return {.kind = ControlMessage::kHeartbeat, .bytes = is_silent_.load() ? 1u : 0u};
}

void ControlChannel::announce_silence(bool silent) {
  is_silent_.store(silent);
  send(heartbeat());
}

void ControlChannel::hang_up() {
  MutexLock lock(mutex_);
  if (std::exchange(finished_, true)) return;
  begins_.notify_one();
  if (!begun_) return;
  queue_.clear();
  ::shutdown(socket_.fd(), SHUT_RDWR);
  poke();
}

void ControlChannel::abandon() noexcept {
  for (const int fd : {socket_.fd(), peer_process_.get(), poke_.get()}) ::close(fd);
}

Status ControlChannel::flush_locked() {
  while (!queue_.empty()) {
    Outgoing& next = queue_.front();
    const auto bytes = bytes_of(next.message).subspan(next.sent);
    RCUDA_ASSIGN_OR_RETURN(size_t sent, try_send_with_fd(socket_, bytes, next.fd.get()));
    if (sent == 0) return {};
    next.fd.reset();
    next.sent += sent;
    if (next.sent == sizeof next.message) queue_.pop_front();
  }
  return {};
}

void ControlChannel::run() {
  {
    MutexLock lock(mutex_);
    begins_.wait(lock, [this]() RCUDA_REQUIRES(mutex_) { return begun_ || finished_; });
  }
  bool intended = false;
  // The socket object may already hold received messages, which poll() does not report.
  std::string why = receive(intended);
  while (why.empty()) {
    {
      MutexLock lock(mutex_);
      if (finished_) return;
    }
    why = poll_once(intended);
  }
  {
    MutexLock lock(mutex_);
    if (std::exchange(finished_, true)) return;
    queue_.clear();
  }
  callbacks_.on_end(intended, why);
}

std::string ControlChannel::poll_once(bool& intended) {
  Clock::time_point wake_at = Clock::time_point::max();
  if (timing_.send_every.count() != 0) wake_at = last_sent_ + timing_.send_every;
  if (limits_silence()) {
    wake_at = std::min(wake_at, last_heard_ + timing_.expect_within);
  }
  bool sending;
  {
    MutexLock lock(mutex_);
    sending = !queue_.empty();
  }
  pollfd entries[] = {
      {socket_.fd(), static_cast<short>(POLLIN | (sending ? POLLOUT : 0)), 0},
      {poke_.get(), POLLIN, 0},
      {peer_process_.get(), POLLIN, 0},  // -1 is ignored by poll
  };
  if (::poll(entries, std::size(entries), poll_timeout_ms(wake_at)) < 0 && errno != EINTR) {
    return std::string("waiting for the peer's control socket (poll): ") + std::strerror(errno);
  }
  const Clock::time_point now = Clock::now();
  if (entries[1].revents != 0) {
    uint64_t count;
    [[maybe_unused]] const ssize_t got = ::read(poke_.get(), &count, sizeof count);
  }
  if (entries[0].revents != 0) {
    if (std::string why = receive(intended); !why.empty()) return why;
  }
  // Checked after reading: a peer may have sent its farewell and then exited.
  if (entries[2].revents != 0) return "the peer's process has ended; see its log";
  if (limits_silence() && now >= last_heard_ + timing_.expect_within) {
    if (std::string why = check_silence(intended); !why.empty()) return why;
  }
  MutexLock lock(mutex_);
  if (!finished_ && timing_.send_every.count() != 0 && now >= last_sent_ + timing_.send_every) {
    last_sent_ = now;
    if (queue_.empty()) queue_.push_back({heartbeat(), 0, UniqueFd()});
  }
  Status sent = flush_locked();
  if (sent.ok()) return {};
  // If the peer has closed the socket (kUnavailable), its farewell may still be unread: receive()
  // reads it next.
  queue_.clear();
  return sent.code() == Code::kUnavailable ? std::string() : sent.context();
}

// Reads once more before it declares the peer lost, because this process may have been stopped
// since the last read. Sends the reason: a stopped peer reads it when it continues.
std::string ControlChannel::check_silence(bool& intended) {
  const Clock::time_point before = last_heard_;
  if (std::string why = receive(intended); !why.empty() || last_heard_ != before) return why;
  const auto limit = static_cast<uint64_t>(timing_.expect_within.count());
  MutexLock lock(mutex_);
  queue_.push_back(
      {ControlMessage{.kind = ControlMessage::kGivenUp, .bytes = limit}, 0, UniqueFd()});
  (void)flush_locked();
  return "the peer has been silent for " + time_text(timing_.expect_within) +
         ": its process is stopped, or its host or the network is down";
}

std::string ControlChannel::receive(bool& intended) {
  while (true) {
    const auto space = writable_bytes_of(incoming_).subspan(incoming_bytes_);
    Result<size_t> received = try_recv_with_fds(socket_, space, incoming_fds_);
    if (!received) return received.status().context();
    if (*received == 0) return {};
    last_heard_ = Clock::now();
    incoming_bytes_ += *received;
    if (incoming_fds_.size() > 1) {
      return violation("the peer sent " + std::to_string(incoming_fds_.size()) +
                       " file descriptors with one control message; the limit is 1");
    }
    if (incoming_bytes_ < sizeof incoming_) continue;

    incoming_bytes_ = 0;
    UniqueFd fd;
    const bool with_fd = !incoming_fds_.empty();
    if (with_fd) fd = std::move(incoming_fds_.front());
    incoming_fds_.clear();
    if ((incoming_.has_fd != 0) != with_fd) {
      return violation("the peer's control message of kind " + std::to_string(incoming_.kind) +
                       " for region " + std::to_string(incoming_.region) +
                       (with_fd ? " came with a file descriptor that it does not announce"
                                : " announces a file descriptor but came without one"));
    }
    switch (incoming_.kind) {
      case ControlMessage::kHeartbeat:
        peer_may_be_silent_ = incoming_.bytes != 0;
        break;
      case ControlMessage::kFarewell:
        intended = true;
        return "the peer ended the session";
      case ControlMessage::kGivenUp:
        return given_up(incoming_.bytes);
      default:
        if (Status status = callbacks_.on_message(incoming_, std::move(fd)); !status.ok()) {
          return status.context();
        }
    }
  }
}

}  // namespace rcuda::transport
