#include "common/transport/tcp/reconnects.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <pthread.h>
#include <sys/socket.h>

#include "common/base/log.h"
#include "common/base/socket_io.h"
#include "common/base/start_thread.h"
#include "common/base/units.h"
#include "common/transport/tcp/tcp_messages.h"
#include "common/transport/violation.h"

namespace rcuda::transport {
namespace {

// The time limit of one attempt to connect, because the network may drop all of its packets.
constexpr auto kAttempt = std::chrono::seconds(5);
// How often a side that waits for the peer to connect checks whether the session has ended.
constexpr auto kLook = std::chrono::milliseconds(500);
// The number of refusals that end the attempts. One refusal is not enough: it is not authenticated,
// and an eavesdropper may have used the token of an attempt (Attach::token) before this side.
constexpr int kRefusals = 3;
// The pause between two attempts doubles from the first value to the second.
constexpr auto kFirstPause = std::chrono::milliseconds(20);
constexpr auto kLongestPause = std::chrono::seconds(1);
// If the peer replaces a socket within this time after its other sockets came back, the socket
// counts as lost together with them.
constexpr auto kSameLoss = std::chrono::seconds(10);

}  // namespace

Reconnects::Reconnects(Reconnecting how, Prepare prepare, size_t retained_bytes)
    : how_(std::move(how)), prepare_(std::move(prepare)), retained_bytes_(retained_bytes) {}

Result<Socket> Reconnects::protect(Socket connection, uint32_t index) {
  RCUDA_ASSIGN_OR_RETURN(RetainedBytes retained, RetainedBytes::make(retained_bytes_));
  auto made =
      std::make_unique<ResumableSocket>(std::move(connection), std::move(retained), index, *this);
  sockets_.push_back(made.get());
  return Socket(std::move(made));
}

Status Reconnects::start() {
  RCUDA_RETURN_IF_ERROR(start_thread(&thread_, [this] { run(); }));
  if (how_.on_connection) how_.on_connection([this](int index) { arrive(index); });
  return {};
}

void Reconnects::say_farewell() { acknowledge(kFarewell, 0); }

void Reconnects::lose() {
  MutexLock lock(mutex_);
  socket_.shutdown(SHUT_RDWR);
}

void Reconnects::end() {
  MutexLock lock(mutex_);
  stopped_ = true;
  socket_.shutdown(SHUT_RDWR);
}

void Reconnects::stop() {
  if (how_.on_connection) how_.on_connection(nullptr);
  end();
  if (thread_.joinable()) thread_.join();
}

void Reconnects::close_in_child() const noexcept { socket_.close_in_child(); }

// The peer has connected again, so the old connection is lost, even if this side has not noticed.
void Reconnects::arrive(int index) {
  if (index == static_cast<int>(kAcknowledgements)) return lose();
  ResumableSocket* const socket = find(static_cast<uint32_t>(index));
  if (socket) (void)socket->lose(kReplaced);
}

Result<Socket> Reconnects::connect(uint32_t index, Clock::time_point limit,
                                   const std::function<bool()>& is_over) {
  Clock::duration pause = kFirstPause;
  int refusals = 0;
  while (!is_over() && !stopped_) {
    const auto now = Clock::now();
    if (now >= limit) {
      return Status(Code::kTimeout, "the connection was lost and did not come back within " +
                                        time_text(how_.limit));
    }
    const Clock::duration most = how_.connects ? Clock::duration(kAttempt) : kLook;
    Result<Socket> next = how_.next(static_cast<int>(index), std::min(limit, now + most));
    if (next.ok()) {
      prepare_(index, next->fd());
      return next;
    }
    if (next.status().code() == Code::kNotFound && ++refusals == kRefusals) return next;
    if (!how_.connects) continue;
    RCUDA_DEBUG("%s: cannot reconnect, trying again: %s", how_.peer.c_str(),
                next.status().message().c_str());
    std::this_thread::sleep_for(std::min(pause, limit - now));
    pause = std::min<Clock::duration>(2 * pause, kLongestPause);
  }
  return Status(Code::kUnavailable, "this side closed the connection");
}

void Reconnects::own(const void* begin, size_t bytes) {
  for (ResumableSocket* socket : sockets_) socket->own(begin, bytes);
}

ResumableSocket* Reconnects::find(uint32_t index) const {
  const auto found = std::ranges::find(sockets_, index, &ResumableSocket::index);
  return found == sockets_.end() ? nullptr : *found;
}

// ---- acknowledgements ---------------------------------------------------------------------------

void Reconnects::acknowledge(uint32_t index, uint64_t received) {
  MutexLock lock(mutex_);
  if (!is_lost_) send_locked({index, 0, received});
}

// Bytes that do not fit into the socket wait for the next call. This is rare, because the peer's
// thread only reads. After an error, the receiving thread gets the next socket.
void Reconnects::send_locked(const Acknowledgement& acknowledgement) {
  const auto bytes = bytes_of(acknowledgement);
  unsent_.insert(unsent_.end(), bytes.begin(), bytes.end());
  const ssize_t sent = socket_.send(unsent_.data(), unsent_.size(), MSG_DONTWAIT);
  if (sent > 0) unsent_.erase(unsent_.begin(), unsent_.begin() + sent);
  if (sent < 0 && errno != EAGAIN && errno != EINTR) socket_.shutdown(SHUT_RDWR);
}

std::vector<Acknowledgement> Reconnects::take_due() {
  std::vector<Acknowledgement> due;
  if (!has_due_.exchange(false)) return due;
  for (ResumableSocket* socket : sockets_) {
    if (const uint64_t received = socket->take_unacknowledged()) {
      due.push_back({socket->index(), 0, received});
    }
  }
  return due;
}

bool Reconnects::take(const Acknowledgement& acknowledgement) {
  if (acknowledgement.index == kFarewell) {
    for (ResumableSocket* one : sockets_) one->expect_end();
    return true;
  }
  ResumableSocket* const socket = find(acknowledgement.index);
  return socket && socket->acknowledge(acknowledgement.received);
}

void Reconnects::run() {
  ::pthread_setname_np(::pthread_self(), "rcuda-acks");
  while (!stopped_) {
    Acknowledgement received;
    if (!recv_all(socket_, writable_bytes_of(received), Deadline::max()).ok()) {
      if (const Status back = renew(); !back.ok()) return end_all(back.context());
    } else if (!take(received)) {
      return end_all(violation("the peer acknowledges bytes that were not sent (" +
                               std::to_string(received.received) + " bytes of socket " +
                               std::to_string(received.index) + ")"));
    }
  }
}

// Gets the next socket for acknowledgements, and sends the counts of all streams over it.
Status Reconnects::renew() {
  {
    MutexLock lock(mutex_);
    is_lost_ = true;
    unsent_.clear();
    socket_.shutdown(SHUT_RDWR);  // if only one direction is lost, the peer must notice
  }
  std::this_thread::sleep_for(kFarewellTime);
  RCUDA_ASSIGN_OR_RETURN(Socket next, connect(kAcknowledgements, Clock::now() + how_.limit,
                                              [this] { return stopped_.load(); }));
  MutexLock lock(mutex_);
  if (stopped_) return {};
  socket_ = std::move(next);
  is_lost_ = false;
  for (const ResumableSocket* socket : sockets_) {
    send_locked({socket->index(), 0, socket->received()});
  }
  return {};
}

void Reconnects::end_all(const std::string& why) {
  for (ResumableSocket* socket : sockets_) socket->end(why);
}

// ---- reports -----------------------------------------------------------------------------------

void Reconnects::lost(const std::string& why) {
  MutexLock lock(report_mutex_);
  if (lost_sockets_++ != 0) return;
  const auto now = Clock::now();
  is_new_loss_ = why != kReplaced || now - back_at_ >= kSameLoss;
  if (is_new_loss_) {
    lost_at_ = now;
    RCUDA_WARN(
        "%s: the connection is lost (%s); the session goes on if the connection is back within %s",
        how_.peer.c_str(), why.c_str(), time_text(how_.limit).c_str());
  }
  if (how_.changed) how_.changed(true, is_new_loss_);
}

void Reconnects::back() {
  MutexLock lock(report_mutex_);
  if (--lost_sockets_ != 0) return;
  back_at_ = Clock::now();
  if (is_new_loss_) {
    RCUDA_WARN("%s: the connection is back after %s", how_.peer.c_str(),
               rounded_time_text(back_at_ - lost_at_).c_str());
  }
  if (how_.changed) how_.changed(false, is_new_loss_);
}

}  // namespace rcuda::transport
