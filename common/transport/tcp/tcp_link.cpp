#include "common/transport/tcp/tcp_link.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/socket.h>

#include "common/base/copy_once.h"
#include "common/base/log.h"
#include "common/base/peer_order.h"
#include "common/base/socket_io.h"
#include "common/base/start_thread.h"
#include "common/base/units.h"
#include "common/transport/gather.h"
#include "common/transport/tcp/tcp_sockets.h"
#include "common/transport/violation.h"

namespace rcuda::transport {
namespace {

constexpr size_t kBufferBytes = 128u << 10;
// Smaller puts pass through the buffer; larger ones are received in place.
constexpr size_t kBufferedPut = 16u << 10;
// If the peer may stay silent without limit, its host counts as lost when it acknowledges nothing
// for this time, although this side has sent data. A stopped peer is not lost: its kernel
// acknowledges data, and answers TCP's probes while its receive buffer is full.
constexpr std::chrono::milliseconds kHostLost = std::chrono::seconds(60);
// As kHostLost, for a Link with Reconnecting.
constexpr std::chrono::milliseconds kConnectionLost = std::chrono::seconds(10);
// A closing Link waits for at most this time until its writes in order are sent, and then for at
// most this time until the peer also closes. Without these waits, the connection could discard the
// last bytes. This is also the time limit for sending the farewell or the last message to a silent
// peer, and for each wait of bulk_lost().
constexpr auto kLinger = std::chrono::milliseconds(300);

// A whole message with a put into a region fits into the receiver's buffer.
static_assert(sizeof(PutHeader) + sizeof(RegionPlace) + kMaxRegionPut <= kBufferBytes);

constexpr char kNoAnswer[] = "the peer's host does not answer: it is off, or the network is down";
constexpr char kClosed[] = "this side closed the connection";
constexpr PutHeader kHeartbeatFrame{0, kHeartbeat};
constexpr PutHeader kSilentFrame{0, kHeartbeat | kMayBeSilent};
constexpr PutHeader kFarewellFrame{0, kFarewell};

}  // namespace

std::chrono::milliseconds silence_checks(std::chrono::milliseconds peer_timeout, bool reconnects) {
  if (peer_timeout.count() == 0) return (reconnects ? kConnectionLost : kHostLost) / 4;
  return std::max(peer_timeout / 4, std::chrono::milliseconds(10));
}

TcpLink::TcpLink(Setup setup)
    : LinkCore(&doorbell_state_, &elsewhere_state_, false),
      reconnects_(std::move(setup.reconnects)),
      control_(std::move(setup.control)),
      window_(std::move(setup.window)),
      peer_window_bytes_(setup.peer_window_bytes),
      peer_timeout_(setup.peer_timeout),
      receive_spin_(setup.receive_spin),
      answers_(setup.answers),
      remedy_for_silence_(std::move(setup.remedy_for_silence)),
      sender_(control_, bytes_of(kHeartbeatFrame), setup.heartbeat, setup.receive_spin,
              [this](const std::string& why) { lost(why); }),
      bulk_(
          std::move(setup.streams),
          {reconnects_.get(), regions_, lent_, order_, setup.receive_spin},
          [this](uint32_t immediate, uint64_t bytes) { immediate_arrived(immediate, bytes); },
          [this](const std::string& why, bool ours) { ours ? lost(why) : bulk_lost(why); }),
      buffer_(kBufferBytes) {}

// After an error the Link has ended; the caller of make_link() reports the reason.
Status TcpLink::start() {
  last_heard_ = Clock::now();
  Status started = reconnects_ ? reconnects_->start() : Status();
  if (started.ok()) started = sender_.start();
  if (started.ok()) started = bulk_.start();
  if (started.ok()) started = start_thread(&receiver_, [this] { receive(); });
  if (started.ok()) return {};
  {
    MutexLock lock(end_mutex_);
    receiver_over_ = true;
  }
  fail(End::kIntended, started.context());
  return started;
}

TcpLink::~TcpLink() {
  close();
  {
    MutexLock lock(end_mutex_);
    receiver_ended_.wait_for(lock, kLinger,
                             [this]() RCUDA_REQUIRES(end_mutex_) { return receiver_over_; });
  }
  control_.shutdown(SHUT_RDWR);
  if (receiver_.joinable()) receiver_.join();
  // on_broken() uses bulk_ and sender_. If a thread of one of them broke the Link, it may not have
  // called on_broken() yet.
  bulk_.join();
  sender_.join();
  if (reconnects_) reconnects_->stop();
}

void TcpLink::close() {
  if (closing_.exchange(true) || broken()) return;
  {
    // Puts after a write in order are valid only with the bytes of the write, so these bytes must
    // be sent too.
    sender_.flush();
    MutexLock lock(end_mutex_);
    takes_writes_ = false;
    writes_sent_.wait_for(lock, kLinger, [this]() RCUDA_REQUIRES(end_mutex_) {
      return unsent_writes_ == 0 || broken();
    });
  }
  if (reconnects_) reconnects_->say_farewell();
  sender_.finish(bytes_of(kFarewellFrame), Clock::now() + kLinger);
  control_.shutdown(SHUT_WR);
  fail(End::kIntended, kClosed);
}

void TcpLink::on_broken() {
  const Status why = status();
  order_.stop_waiting();
  bulk_.stop(why);
  sender_.stop();
  if (!closing_) control_.shutdown(SHUT_RDWR);
  if (reconnects_) reconnects_->end();
}

// If the peer ends on purpose, its bulk connections may close before this side reads its last
// message. First gives the receiver time to read everything up to that message. Then ends the
// receiver's wait for writes, whose bytes may have been lost with the connection.
void TcpLink::bulk_lost(const std::string& why) {
  MutexLock lock(end_mutex_);
  const auto is_over = [this]() RCUDA_REQUIRES(end_mutex_) { return receiver_over_ || broken(); };
  if (!receiver_ended_.wait_for(lock, kLinger, is_over)) {
    order_.stop_waiting();
    receiver_ended_.wait_for(lock, kLinger, is_over);
  }
  lock.unlock();
  lost(why);
}

void TcpLink::abandon() noexcept {
  control_.close_in_child();
  if (reconnects_) reconnects_->close_in_child();
  bulk_.abandon();
}

Status TcpLink::put(uint64_t offset, std::span<const Bytes> pieces, Wake wake) {
  const size_t total = total_bytes(pieces);
  RCUDA_RETURN_IF_ERROR(check_put(offset, pieces.size(), total, peer_window_bytes_));
  run_before_put();
  if (reconnects_ && reconnects_->has_due()) acknowledge();
  const uint32_t kind = wakes_peer(wake) ? kPutAndWake : kPut;
  before_peer(order_.for_sanitizer());
  const PutHeader header{static_cast<uint32_t>(total), static_cast<uint32_t>(offset) | kind};
  std::array<Bytes, kMaxPutPieces + 1> message;
  message[0] = bytes_of(header);
  std::copy(pieces.begin(), pieces.end(), message.begin() + 1);
  if (!sender_.send(std::span(message).first(pieces.size() + 1), total + sizeof header, wake)) {
    return broken() ? status() : Status{Code::kUnavailable, kClosed};
  }
  MutexLock lock(put_mutex_);
  count_put(total);
  return {};
}

// Queues the due acknowledgements. The caller's put carries them.
void TcpLink::acknowledge() {
  for (const Acknowledgement& one : reconnects_->take_due()) {
    const PutHeader header{sizeof one, kAcknowledged};
    const std::array<Bytes, 2> message{bytes_of(header), bytes_of(one)};
    (void)sender_.keep(message, sizeof header + sizeof one);
  }
}

Status TcpLink::put_region(RegionId region, uint64_t offset, Bytes bytes) {
  RCUDA_RETURN_IF_ERROR(check_region_put(bytes.size()));
  before_peer(order_.for_sanitizer());
  const RegionPlace place{static_cast<uint64_t>(region), offset};
  const PutHeader header{static_cast<uint32_t>(sizeof place + bytes.size()), kRegionPut};
  const std::array<Bytes, 3> message{bytes_of(header), bytes_of(place), bytes};
  {
    MutexLock lock(sent_mutex_);
    const uint32_t sent = sent_order_.add_put();
    if (!sender_.keep(message, sizeof header + header.bytes)) {
      return broken() ? status() : Status{Code::kUnavailable, kClosed};
    }
    sent_in_order_.store(sent, std::memory_order_release);
  }
  count_copied(bytes.size());
  return {};
}

Result<Region> TcpLink::expose(void* base, size_t bytes, int, uint64_t) {
  if (broken()) return status();
  return regions_.add(base, bytes);
}

Status TcpLink::unexpose(RegionId region) {
  RCUDA_ASSIGN_OR_RETURN(const std::shared_ptr<ExposedRegions::Entry> entry,
                         regions_.remove(region));
  if (reconnects_) reconnects_->own(entry->base, entry->bytes);
  return {};
}

void TcpLink::take_back(const void* base, size_t bytes) {
  if (!reconnects_) return;
  lent_.remove(base, bytes);
  reconnects_->own(base, bytes);
}

void TcpLink::write(RegionId region, uint64_t offset, const void* local, size_t bytes,
                    TransferDone done) {
  write_with_immediate(region, offset, local, bytes, 0, Company::kAlone, std::move(done));
}

void TcpLink::write_with_immediate(RegionId region, uint64_t offset, const void* local,
                                   size_t bytes, uint32_t immediate, Company company,
                                   TransferDone done) {
  auto* const source = static_cast<std::byte*>(const_cast<void*>(local));
  transfer({true, region, offset, source, bytes, immediate, company}, std::move(done));
}

void TcpLink::read(RegionId region, uint64_t offset, void* local, size_t bytes, TransferDone done) {
  transfer({false, region, offset, static_cast<std::byte*>(local), bytes}, std::move(done));
}

TransferDone TcpLink::counting(size_t bytes, TransferDone done) {
  return [this, bytes, done = std::move(done)](const Status& status) {
    if (status.ok()) {
      // This side's CPU has copied these bytes: the kernel copies between socket and memory.
      count_copied(bytes);
    }
    done(status);
  };
}

void TcpLink::transfer(const TransferRequest& what, TransferDone done) {
  if (what.offset > UINT64_MAX - what.bytes) {
    return done({Code::kInvalidArgument, "a transfer of " + std::to_string(what.bytes) +
                                             " bytes at offset " + std::to_string(what.offset) +
                                             " exceeds the largest offset"});
  }
  run_before_put();
  const uint32_t before = sent_in_order_.load(std::memory_order_acquire);
  if (before != 0) sender_.flush();  // sends the puts for which the transfer waits
  bulk_.transfer(what, before, counting(what.bytes, std::move(done)));
}

// The pieces enter the streams before other threads see the count that includes this write. So in
// each socket the pieces precede the transfers that wait for this count.
void TcpLink::write_in_order(RegionId region, uint64_t offset, const void* local, size_t bytes,
                             TransferDone done) {
  if (bytes == 0 || offset > UINT64_MAX - bytes) {
    return done({Code::kInvalidArgument, "cannot write " + std::to_string(bytes) +
                                             " bytes in order at offset " + std::to_string(offset) +
                                             ": the size is 0, or the end exceeds the largest "
                                             "offset"});
  }
  auto* const source = static_cast<std::byte*>(const_cast<void*>(local));
  TransferRequest what{true, region, offset, source, bytes, 0, Company::kAlone, true};
  if (broken()) return done(status());
  {
    MutexLock lock(end_mutex_);
    if (!takes_writes_) {
      lock.unlock();
      return done({Code::kUnavailable, kClosed});
    }
    ++unsent_writes_;
  }
  const auto sent = [this, done = std::move(done)](const Status& status) {
    done(status);
    MutexLock lock(end_mutex_);
    --unsent_writes_;
    writes_sent_.notify_all();
  };
  MutexLock lock(sent_mutex_);
  sender_.flush();  // sends the puts into regions for which the write waits
  const SentOrder::Write write = sent_order_.add_write(region, offset, offset + bytes);
  what.immediate = write.number;
  bulk_.transfer(what, write.after_puts, counting(bytes, sent));
  const EndOfWrite end{bytes, write.number};
  const PutHeader header{sizeof end, kEndOfWrite};
  const std::array<Bytes, 2> message{bytes_of(header), bytes_of(end)};
  (void)sender_.keep(message, sizeof header + sizeof end);  // a lost Link ends the write as well
  sent_in_order_.store(write.sent, std::memory_order_release);
}

void TcpLink::receive() {
  ::pthread_setname_np(::pthread_self(), "rcuda-tcp-recv");
  std::string why;
  while (why.empty()) {
    why = fill();
    if (why.empty()) why = take_puts();
  }
  if (farewell_) {
    fail(End::kIntended, why);
  } else {
    if (gives_up_) {
      const PutHeader farewell{static_cast<uint32_t>(peer_timeout_.count()), kGivenUp};
      sender_.finish(bytes_of(farewell), Clock::now() + kLinger);
    }
    lost(why);
  }
  MutexLock lock(end_mutex_);
  receiver_over_ = true;
  receiver_ended_.notify_all();
}

// Receives some bytes. Until they come, checks the peer whenever recv() times out (SO_RCVTIMEO).
std::string TcpLink::receive_some(std::byte* data, size_t bytes, size_t* received) {
  const Clock::time_point begin = Clock::now();
  Clock::time_point asked = begin;
  int flags = 0;
  while (true) {
    const ssize_t count = recv_spinning(control_, data, bytes, flags, receive_spin_.limit());
    if (count > 0) {
      last_heard_ = Clock::now();
      receive_spin_.waited(last_heard_ - begin);
      *received = static_cast<size_t>(count);
      return {};
    }
    if (count == 0) {
      const std::string why = control_.why_ended();
      return why.empty() ? "the peer closed the connection" : why;
    }
    if (errno == ECONNRESET) return "the peer closed the connection";
    if (errno == ETIMEDOUT) return kNoAnswer;
    if (errno == EINTR) continue;  // this process was stopped: first read what arrived meanwhile
    if (errno != EAGAIN) return std::string("receiving from the peer: ") + std::strerror(errno);
    if (std::string why = check_peer(asked); !why.empty()) return why;
    // Only a read that begins after the limit shows that the peer is lost, because this process may
    // be stopped between any two lines.
    asked = Clock::now();
    flags = is_overdue(asked) ? MSG_DONTWAIT : 0;
  }
}

void TcpLink::announce_silence(bool silent) {
  sender_.change_heartbeat(bytes_of(silent ? kSilentFrame : kHeartbeatFrame));
}

// Lifts the kernel's limit on unacknowledged bytes while the peer may be silent. The limit would
// end the connection to a stopped peer, because it includes the time for which that peer's receive
// buffer stays full.
void TcpLink::allow_silence(bool may_be_silent) {
  if (std::exchange(peer_may_be_silent_, may_be_silent) == may_be_silent) return;
  if (peer_timeout_.count() == 0) return;
  const auto limit = may_be_silent ? std::chrono::milliseconds(0) : peer_timeout_;
  transport::limit_unacknowledged(control_, limit);
  bulk_.limit_unacknowledged(limit);
}

bool TcpLink::is_overdue(Clock::time_point now) const {
  return limits_silence() && now - last_heard_ >= peer_timeout_;
}

std::string TcpLink::check_peer(Clock::time_point now) {
  if (const uint32_t connections = control_.connections(); connections != heard_over_) {
    heard_over_ = connections;
    last_heard_ = Clock::now();
  }
  if (limits_silence()) {
    if (!is_overdue(now)) return {};
    const std::string why = "the peer has been silent for " + time_text(peer_timeout_) +
                            ": its process is stopped, or its host or the network is down";
    if (lose_connections(why)) return {};
    gives_up_ = true;
    return reconnects_ ? why : why + remedy_for_silence_;
  }
  tcp_info info{};
  socklen_t size = sizeof info;
  if (!control_.get_option(IPPROTO_TCP, TCP_INFO, &info, &size)) return {};
  const std::chrono::milliseconds patience = reconnects_ ? kConnectionLost : kHostLost;
  const bool unanswered = info.tcpi_unacked != 0 && info.tcpi_retransmits != 0 &&
                          std::chrono::milliseconds(info.tcpi_last_ack_recv) > patience;
  if (!unanswered) return {};
  return lose_connections(kNoAnswer) ? "" : kNoAnswer;
}

// Returns false if the sockets do not reconnect.
bool TcpLink::lose_connections(const std::string& why) {
  if (!control_.lose(why)) return false;
  bulk_.lose(why);
  reconnects_->lose();
  last_heard_ = Clock::now();
  return true;
}

std::string TcpLink::fill() {
  // Moves the unread bytes to the front, so that headers and buffered puts are contiguous.
  if (begin_ != 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  size_t received = 0;
  std::string why = receive_some(buffer_.data() + end_, buffer_.size() - end_, &received);
  end_ += received;
  return why;
}

std::string TcpLink::take_puts() {
  std::string why;
  bool wake = false, wake_elsewhere = false;
  const auto ring = [&] {
    if (std::exchange(wake, false)) doorbell_.ring();
    if (std::exchange(wake_elsewhere, false)) elsewhere_.ring();
  };
  while (why.empty() && end_ - begin_ >= sizeof(PutHeader)) {
    PutHeader header;
    std::memcpy(&header, buffer_.data() + begin_, sizeof header);
    const uint32_t kind = header.place % 8;
    const uint64_t offset = header.place - kind;
    if (kind == kFarewell || kind == kGivenUp) {
      why = last_message(header);
      if (!why.empty()) break;
    }
    if (kind == kHeartbeat && header.bytes == 0) {
      allow_silence(offset != 0);
      begin_ += sizeof header;
      continue;
    }
    if (kind == kRegionPut) {
      bool whole = false;
      why = take_region_put(header, &whole);
      if (!whole) break;
      continue;
    }
    if (kind == kAcknowledged) {
      bool whole = false;
      why = take_acknowledgement(header, &whole);
      if (!whole) break;
      continue;
    }
    if (kind == kEndOfWrite) {
      ring();  // wakes waiters now, because the write may take long to arrive
      bool whole = false;
      why = take_end_of_write(header, &whole);
      if (!whole) break;
      continue;
    }
    if (kind > kPutAndWake || header.bytes < kWord || header.bytes % kWord != 0 ||
        header.bytes > window_.size() || offset > window_.size() - header.bytes) {
      why = violation("the peer sent a put of " + std::to_string(header.bytes) +
                      " bytes at offset " + std::to_string(offset) + " (kind " +
                      std::to_string(kind) + "), which is not whole words inside the window of " +
                      std::to_string(window_.size()) + " bytes");
      break;
    }
    after_peer(order_.for_sanitizer());  // the put follows transfers whose end the peer has seen
    if (header.bytes > kBufferedPut) {
      ring();  // wakes waiters now, because the rest of the put may take long to arrive
      why = take_large_put(header);
    } else {
      if (end_ - begin_ < sizeof header + header.bytes) break;
      const Bytes payload(buffer_.data() + begin_ + sizeof header, header.bytes);
      begin_put();
      store_pieces(window_.data() + offset, std::span(&payload, 1), payload.size());
      begin_ += sizeof header + header.bytes;
    }
    wake = wake || kind == kPutAndWake;
    wake_elsewhere = wake_elsewhere || (kind == kPutAndWake && !answers_.holds(offset));
  }
  ring();  // once for all puts that arrived together
  return why;
}

// `whole`: false if the message has not arrived completely, or breaks the protocol.
std::string TcpLink::take_region_put(const PutHeader& header, bool* whole) {
  RegionPlace place;
  if (header.place != kRegionPut || header.bytes <= sizeof place ||
      header.bytes > sizeof place + kMaxRegionPut) {
    return violation(
        "the peer's put into a region has " + std::to_string(header.bytes) + " bytes and offset " +
        std::to_string(header.place - kRegionPut) + "; " + std::to_string(sizeof place + 1) +
        " to " + std::to_string(sizeof place + kMaxRegionPut) + " bytes and offset 0 are valid");
  }
  if (end_ - begin_ < sizeof header + header.bytes) return {};
  const std::byte* const message = buffer_.data() + begin_ + sizeof header;
  std::memcpy(&place, message, sizeof place);
  const size_t bytes = header.bytes - sizeof place;
  const Result<std::shared_ptr<ExposedRegions::Entry>> entry =
      regions_.find(place.region, place.offset, bytes);
  if (!entry.ok() && entry.status().code() != Code::kNotFound) {
    return violation("a put into a region: " + entry.status().context());
  }
  after_peer(order_.for_sanitizer());
  begin_put();
  if (entry.ok()) {
    const ExposedRegions::Pin pin(**entry);
    // Threads of the program may poll the memory, and write to it when they see these bytes. So
    // each byte is written only once.
    if (pin) copy_once((*entry)->base + place.offset, message + sizeof place, bytes);
  }
  order_.count_put();
  begin_ += sizeof header + header.bytes;
  *whole = true;
  return {};
}

// `whole`: as in take_region_put().
std::string TcpLink::take_acknowledgement(const PutHeader& header, bool* whole) {
  Acknowledgement acknowledgement;
  if (!reconnects_ || header.place != kAcknowledged || header.bytes != sizeof acknowledgement) {
    return violation(
        "the peer sent an acknowledgement of " + std::to_string(header.bytes) +
        " bytes with offset " + std::to_string(header.place - kAcknowledged) +
        (reconnects_
             ? "; " + std::to_string(sizeof acknowledgement) + " bytes and offset 0 are valid"
             : " on a connection that cannot reconnect, where acknowledgements are invalid"));
  }
  if (end_ - begin_ < sizeof header + sizeof acknowledgement) return {};
  std::memcpy(&acknowledgement, buffer_.data() + begin_ + sizeof header, sizeof acknowledgement);
  begin_ += sizeof header + sizeof acknowledgement;
  *whole = true;
  return reconnects_->take(acknowledgement)
             ? ""
             : violation("the peer acknowledges bytes that were not sent (" +
                         std::to_string(acknowledgement.received) + " bytes of socket " +
                         std::to_string(acknowledgement.index) + ")");
}

// `whole`: as in take_region_put(). While this thread waits for the write, it reads no heartbeats;
// bytes on the sockets for transfers count as heartbeats instead.
std::string TcpLink::take_end_of_write(const PutHeader& header, bool* whole) {
  EndOfWrite end;
  if (header.place != kEndOfWrite || header.bytes != sizeof end) {
    return violation("the peer's message for the end of a write has " +
                     std::to_string(header.bytes) + " bytes and offset " +
                     std::to_string(header.place - kEndOfWrite) + "; " +
                     std::to_string(sizeof end) + " bytes and offset 0 are valid");
  }
  if (end_ - begin_ < sizeof header + sizeof end) return {};
  std::memcpy(&end, buffer_.data() + begin_ + sizeof header, sizeof end);
  const std::chrono::milliseconds patience = silence_checks(peer_timeout_, reconnects_ != nullptr);
  uint64_t seen = order_.bytes();
  for (auto until = Clock::now() + patience;
       !order_.wait_for_write(end.number, end.bytes, receive_spin_.limit(), until);
       until = Clock::now() + patience) {
    if (closing_) return discard();
    if (broken()) return kClosed;
    if (order_.stopped()) return discard();
    // If this process was stopped, the peer's silence proves nothing, as in receive_some().
    const bool was_stopped = Clock::now() > until + patience;
    const uint64_t now = order_.bytes();
    if (std::exchange(seen, now) != now || was_stopped) last_heard_ = Clock::now();
    if (std::string why = check_peer(Clock::now()); !why.empty()) return why;
  }
  last_heard_ = Clock::now();
  order_.count_put();
  begin_ += sizeof header + sizeof end;
  *whole = true;
  return {};
}

// The reason for the end of the session, if this is the peer's last message; otherwise empty.
std::string TcpLink::last_message(const PutHeader& header) {
  if (header.place == kGivenUp) return given_up(header.bytes);
  if (header.place % 8 != kFarewell) return {};
  farewell_ = true;
  return "the peer ended the session";
}

// Called when the bytes of a write in order will not arrive. Drops all messages before the peer's
// last message, because puts after the write are invalid without its bytes.
std::string TcpLink::discard() {
  std::string why;
  while (why.empty()) {
    if (end_ - begin_ < sizeof(PutHeader)) {
      why = fill();
      continue;
    }
    PutHeader header;
    std::memcpy(&header, buffer_.data() + begin_, sizeof header);
    begin_ += sizeof header;
    why = last_message(header);
    for (size_t left = header.bytes; why.empty() && left != 0;) {
      if (begin_ == end_) why = fill();
      const size_t part = std::min(left, end_ - begin_);
      begin_ += part;
      left -= part;
    }
  }
  return why;
}

std::string TcpLink::take_large_put(const PutHeader& header) {
  std::byte* const place = window_.data() + (header.place & ~7u);
  begin_ += sizeof header;
  // Stores the first word, receives the middle in place, then stores the last word.
  while (end_ - begin_ < kWord) {
    if (std::string why = fill(); !why.empty()) return why;
  }
  begin_put();
  uint64_t word;
  std::memcpy(&word, buffer_.data() + begin_, kWord);
  store_word(place, word, std::memory_order_relaxed);
  begin_ += kWord;
  const size_t last = header.bytes - kWord;
  const size_t buffered = std::min(end_ - begin_, last - kWord);
  std::memcpy(place + kWord, buffer_.data() + begin_, buffered);
  begin_ += buffered;
  for (size_t at = kWord + buffered; at < last;) {
    size_t received = 0;
    std::string why = receive_some(place + at, last - at, &received);
    if (!why.empty()) return why;
    at += received;
  }
  while (end_ - begin_ < kWord) {
    if (std::string why = fill(); !why.empty()) return why;
  }
  std::memcpy(&word, buffer_.data() + begin_, kWord);
  store_word(place + last, word, std::memory_order_release);
  begin_ += kWord;
  return {};
}

}  // namespace rcuda::transport
