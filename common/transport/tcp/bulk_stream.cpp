#include "common/transport/tcp/bulk_stream.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "common/base/cpu_pause.h"
#include "common/base/peer_order.h"
#include "common/base/socket_io.h"
#include "common/base/start_thread.h"
#include "common/transport/tcp/tcp_sockets.h"
#include "common/transport/violation.h"

namespace rcuda::transport {
namespace {

// The most bytes that the answering thread, or a requesting thread with no other work, sends while
// the sending thread wakes up.
constexpr uint64_t kMeanwhileBytes = 1u << 20;
// ThreadSanitizer assumes that sendmsg() reads its buffers even after they were sent, when the peer
// may already reuse the memory. Under ThreadSanitizer, the kDone that allows the reuse is sent in
// its own call.
#ifdef __SANITIZE_THREAD__
constexpr bool kDoneWithData = false;
#else
constexpr bool kDoneWithData = true;
#endif
// The most bytes of one system call during which a region is pinned.
constexpr size_t kPinnedBytes = 1u << 20;
constexpr size_t kScratchBytes = 64u << 10;

std::string last_error() {
  return errno == EPIPE || errno == ECONNRESET
             ? "the peer closed a bulk socket"
             : std::string("a bulk socket of the connection failed: ") + std::strerror(errno);
}

std::string why_closed(const Socket& socket) {
  const std::string why = socket.why_ended();
  return why.empty() ? "the peer closed a bulk socket" : why;
}

using Clock = std::chrono::steady_clock;

// During the pause, the kernel receives more bytes, so the next recv() returns more at once.
void pause_briefly() {
  for (int i = 0; i < 64; ++i) cpu_pause();
  std::this_thread::yield();
}

template <typename Ready>
void spin_until(Clock::time_point end, const Ready& ready) {
  while (!ready() && Clock::now() < end) std::this_thread::yield();
}

bool interrupted() { return errno == EAGAIN || errno == EINTR; }

Status refused(uint32_t code) {
  switch (static_cast<Code>(code)) {
    case Code::kOk:
      return {};
    case Code::kNotFound:
      return {Code::kNotFound, "the peer refused a transfer: its region is withdrawn or unknown"};
    case Code::kInvalidArgument:
      return {Code::kInvalidArgument, "the peer refused a transfer: it is outside of the region"};
    default:
      return {Code::kProtocol,
              "the peer refused a transfer with the unexpected code " + std::to_string(code)};
  }
}

}  // namespace

BulkStream::BulkStream(Socket socket, uint32_t index, const Shared& shared,
                       ImmediateArrived on_immediate, OnError on_error)
    : socket_(std::move(socket)),
      resumable_(shared.reconnects ? shared.reconnects->find(index) : nullptr),
      regions_(shared.regions),
      lent_(shared.lent),
      order_(shared.order),
      receive_spin_(shared.receive_spin),
      on_immediate_(std::move(on_immediate)),
      on_error_(std::move(on_error)),
      name_("bulk stream " + std::to_string(index)) {}

Status BulkStream::start() {
  MutexLock lock(mutex_);
  if (is_stopped(state_.get())) return why_stopped_;  // another stream of the Link has failed
  RCUDA_RETURN_IF_ERROR(start_thread(&receiver_, [this] { receive(); }));
  ++running_;
  state_.move(StreamEvent::kStart, name_);
  return {};
}

void BulkStream::call_sender_locked() {
  start_sender_locked();
  called_.store(true, std::memory_order_relaxed);
  to_send_.notify_one();
}

void BulkStream::start_sender_locked() {
  if (!runs() || sender_.joinable()) return;
  const Status started = start_thread(&sender_, [this] { send(); });
  started.ok() ? void(++running_) : fail_to_send_locked({started.context(), true});
}

// Shuts the socket down. The receiving thread then sees the end of the socket and reports the
// failure.
void BulkStream::fail_to_send_locked(Failure why) {
  if (!state_.move(StreamEvent::kFailure, name_)) return;
  failure_ = std::move(why);
  socket_.shutdown(SHUT_RDWR);
}

void BulkStream::submit(Piece piece, Sender sender) {
  Status why;
  {
    MutexLock lock(mutex_);
    if (!is_stopped(state_.get())) {
      queued_bytes_.fetch_add(piece.bytes, std::memory_order_relaxed);
      (piece.in_order ? in_order_ : requests_).push_back(std::move(piece));
      if (sender == Sender::kThread) return call_sender_locked();
      return drive_briefly(lock, sender == Sender::kCallerAlone ? Meanwhile::kAll
                                 : sender == Sender::kCaller    ? Meanwhile::kLargeRequest
                                                                : Meanwhile::kNothing);
    }
    why = why_stopped_;
  }
  piece.transfer->piece_done(why);
}

void BulkStream::stop(const Status& why) {
  MutexLock lock(mutex_);
  if (!state_.move(StreamEvent::kStop, name_)) return;
  called_.store(true, std::memory_order_relaxed);
  why_stopped_ = why;
  socket_.shutdown(SHUT_RDWR);
  to_send_.notify_all();
}

void BulkStream::limit_unacknowledged(std::chrono::milliseconds limit) {
  transport::limit_unacknowledged(socket_, limit);
}

void BulkStream::join() {
  if (receiver_.joinable()) receiver_.join();
  if (sender_.joinable()) sender_.join();
}

// Called by the stream's two threads at their end, and by other threads after drive(). The last
// thread fails the unfinished pieces. Their memory belongs to the callers again only now, because
// no thread can touch it any more.
void BulkStream::leave(MutexLock& lock) {
  if (--running_ != 0) return;
  state_.move(StreamEvent::kLeft, name_);
  std::vector<std::shared_ptr<PendingTransfer>> failed;
  const Status why = why_stopped_;
  for (const auto& [id, flying] : in_flight_) failed.push_back(flying.piece.transfer);
  for (const auto* queue : {&in_order_, &requests_}) {
    for (const Piece& piece : *queue) failed.push_back(piece.transfer);
  }
  in_flight_.clear();
  in_order_.clear();
  requests_.clear();
  lock.unlock();
  if (resumable_) resumable_->await_end();
  for (const auto& transfer : failed) transfer->piece_done(why);
  lock.lock();
}

void BulkStream::receive() {
  ::pthread_setname_np(::pthread_self(), "rcuda-bulk-recv");
  std::string why;
  while (why.empty()) why = receive_one();
  MutexLock lock(mutex_);
  if (state_.move(StreamEvent::kFailure, name_)) failure_.why = std::move(why);
  if (!is_stopped(state_.get())) {
    const Failure first = failure_;
    lock.unlock();
    on_error_(first.why, first.ours);
    stop({Code::kUnavailable, first.why});  // usually already stopped by on_error_
    lock.lock();
  }
  leave(lock);
}

void BulkStream::send() {
  ::pthread_setname_np(::pthread_self(), "rcuda-bulk-send");
  MutexLock lock(mutex_);
  while (true) {
    if (!has_work() && receive_spin_.count() > 0) {
      called_.store(false, std::memory_order_relaxed);
      lock.unlock();
      spin_until(Clock::now() + receive_spin_,
                 [&] { return called_.load(std::memory_order_relaxed); });
      lock.lock();
    }
    to_send_.wait(lock, [&]() RCUDA_REQUIRES(mutex_) { return !runs() || has_work(); });
    if (!runs()) break;
    drive(lock, kAnyBytes, Blocking::kYes);
    if (!message_ || !runs()) continue;
    // While sending_ is set, other threads only queue.
    sending_ = true;
    lock.unlock();
    (void)socket_.wait(POLLOUT, -1);
    lock.lock();
    sending_ = false;
  }
  leave(lock);
}

// Moves the next message into message_. Returns false if no message is waiting, or if it carries
// more than `most` bytes.
bool BulkStream::next_message(uint64_t most) {
  if (answer_is_next()) {
    const BulkHeader& asked = answers_.front().asked;
    if (asked.kind == BulkHeader::kRead && asked.bytes > most) return false;
    message_ = answer_message(answers_.front());
    answers_.pop_front();
    answer_next_ = false;
    return true;
  }
  if (!can_request()) return false;
  const Piece& piece = next_request();
  if (piece.to_peer && piece.bytes > most) return false;
  Message message;
  message.header.kind = !piece.to_peer   ? BulkHeader::kRead
                        : piece.in_order ? BulkHeader::kWriteInOrder
                                         : BulkHeader::kWrite;
  message.header.piece = message.piece = next_piece_++;
  message.header.region = piece.region;
  message.header.offset = piece.offset;
  message.header.bytes = piece.bytes;
  message.header.immediate = piece.immediate;
  message.header.after_puts = piece.after_puts;
  if (piece.to_peer) {
    message.payload = piece.local;
    message.payload_bytes = piece.bytes;
    if (resumable_) keep_source(piece, &message);
  }
  const PieceState state = !piece.to_peer         ? PieceState::kAsking
                           : piece.immediate != 0 ? PieceState::kAnswered
                                                  : PieceState::kSending;
  in_flight_[message.piece] = {piece, state, {}};
  (in_order_.empty() ? requests_ : in_order_).pop_front();
  message_ = std::move(message);
  answer_next_ = true;
  return true;
}

// A piece that the peer answers is retained by its address, because its memory belongs to the
// caller again only after the answer. Any other piece in lent memory is retained by its address,
// too. The bytes of the remaining pieces are copied.
void BulkStream::keep_source(const Piece& piece, Message* message) {
  if (!piece.is_answered()) message->kept = lent_.find(piece.local, piece.bytes);
  message->is_kept = piece.is_answered() || message->kept;
}

// Sends messages until none is left, the socket is full, or the next message carries more than
// `most` bytes. With Blocking::kNo, `most` limits only the first message, and kDirectBytes limits
// the others. The caller holds the lock before and after the call. Callbacks may run during the
// call.
void BulkStream::drive(MutexLock& lock, uint64_t most, Blocking blocking) {
  sending_ = true;
  while (runs() && (message_ || next_message(most))) {
    lock.unlock();
    std::string why;
    const bool taken = push(blocking, &why);
    lock.lock();
    if (!why.empty()) {
      fail_to_send_locked({why});
      message_.reset();
      break;
    }
    if (!taken) break;
    if (message_->sent != message_->bytes()) continue;
    const uint64_t piece = message_->piece;
    message_.reset();
    if (piece != 0) in_flight_[piece].end = sent_;
    if (piece != 0) (void)advance(lock, piece, PieceEvent::kSent);
    if (blocking == Blocking::kNo) most = kDirectBytes;
  }
  sending_ = false;
}

// Whether the next message is of the kind `meanwhile`, and carries more than kDirectBytes and at
// most kMeanwhileBytes.
bool BulkStream::next_is(Meanwhile meanwhile) const {
  uint64_t bytes = 0;
  if (meanwhile == Meanwhile::kLargeAnswer && answer_is_next()) {
    const BulkHeader& asked = answers_.front().asked;
    if (asked.kind == BulkHeader::kRead) bytes = asked.bytes;
  } else if (meanwhile == Meanwhile::kLargeRequest && !answer_is_next() && can_request()) {
    if (next_request().to_peer) bytes = next_request().bytes;
  }
  return bytes > kDirectBytes && bytes <= kMeanwhileBytes;
}

// Lets a thread other than the sending thread send for a short time (drive()). The sending thread
// sends the remaining messages. `meanwhile`: the kind of large message that the calling thread may
// send while the sending thread wakes up.
void BulkStream::drive_briefly(MutexLock& lock, Meanwhile meanwhile) {
  if (!sending_ && !message_ && runs()) {
    const bool large = next_is(meanwhile);
    if (large) call_sender_locked();
    ++running_;
    const uint64_t most = meanwhile == Meanwhile::kAll ? kAnyBytes
                          : large                      ? kMeanwhileBytes
                                                       : kDirectBytes;
    drive(lock, most, Blocking::kNo);
    leave(lock);
  }
  if (sending_ || !runs() || !(message_ || !answers_.empty() || can_request())) return;
  call_sender_locked();
}

std::string BulkStream::receive_bytes(std::byte* data, size_t bytes) {
  while (bytes != 0) {
    const ssize_t count = recv_spinning(socket_, data, bytes, MSG_WAITALL, receive_spin_);
    if (count == 0) return why_closed(socket_);
    if (count < 0 && !interrupted()) return last_error();
    if (count < 0) continue;
    order_.note_bytes(static_cast<uint64_t>(count));
    data += count;
    bytes -= static_cast<size_t>(count);
  }
  return {};
}

std::string BulkStream::receive_one() {
  BulkHeader header;
  std::string why = receive_bytes(writable_bytes_of(header).data(), sizeof header);
  if (!why.empty()) return why;
  if (header.bytes > kMaxPieceBytes) {
    return violation("the peer sent a message for " + std::to_string(header.bytes) +
                     " bytes on a bulk socket; the limit is " + std::to_string(kMaxPieceBytes) +
                     " bytes");
  }
  const bool is_request = header.kind == BulkHeader::kWrite || header.kind == BulkHeader::kRead ||
                          header.kind == BulkHeader::kWriteInOrder;
  if (is_request && !order_.wait_for_puts(header.after_puts)) {
    return "this side closed the connection";
  }
  switch (header.kind) {
    case BulkHeader::kWrite:
    case BulkHeader::kWriteInOrder:
      return take_write(header);
    case BulkHeader::kRead:
      return queue_answer(header, Code::kOk);
    case BulkHeader::kData:
      return take_data(header);
    case BulkHeader::kDone:
      return take_done(header);
    default:
      return violation("the peer sent a message of unknown kind " + std::to_string(header.kind) +
                       " on a bulk socket");
  }
}

std::string BulkStream::take_write(const BulkHeader& header) {
  Result<std::shared_ptr<ExposedRegions::Entry>> region =
      regions_.find(header.region, header.offset, header.bytes);
  Code code = region ? Code::kOk : region.status().code();
  after_peer(order_.for_sanitizer());  // this side's puts allowed the peer to write there
  uint64_t at = 0;
  auto sleep_at = Clock::now() + receive_spin_;
  while (at < header.bytes) {
    ssize_t count = -1;
    size_t want = 0;
    if (code == Code::kOk) {
      const ExposedRegions::Pin pin(**region);
      if (pin) {
        want = std::min<uint64_t>(header.bytes - at, kPinnedBytes);
        count = socket_.recv((*region)->base + header.offset + at, want, MSG_DONTWAIT);
      } else {
        code = Code::kNotFound;
      }
    }
    if (code != Code::kOk) {
      scratch_.resize(kScratchBytes);
      want = std::min<uint64_t>(header.bytes - at, kScratchBytes);
      count = socket_.recv(scratch_.data(), want, 0);
    }
    if (count == 0) return why_closed(socket_);
    if (count > 0) {
      at += static_cast<uint64_t>(count);
      order_.note_bytes(static_cast<uint64_t>(count));
      sleep_at = Clock::now() + receive_spin_;
    } else if (!interrupted()) {
      return last_error();
    }
    const bool is_empty =
        count < 0 || (receive_spin_.count() == 0 && count < static_cast<ssize_t>(want));
    if (!is_empty || at == header.bytes) continue;
    Clock::now() < sleep_at ? pause_briefly() : (void)socket_.wait(POLLIN, -1);
  }
  before_peer(order_.for_sanitizer());  // later puts of the peer may announce this data
  const bool in_order = header.kind == BulkHeader::kWriteInOrder;
  if (header.immediate == 0 && !in_order) return queue_answer(header, code);
  // A write into a region that has been withdrawn is dropped.
  if (code == Code::kInvalidArgument) {
    return violation("the peer wrote " + std::to_string(header.bytes) + " bytes at offset " +
                     std::to_string(header.offset) + " outside of region " +
                     std::to_string(header.region));
  }
  if (in_order && !order_.count_piece(header.immediate, header.bytes)) {
    return violation("the peer has more than " + std::to_string(SocketOrder::kMostWrites) +
                     " unfinished writes in order");
  }
  if (code == Code::kOk && !in_order) on_immediate_(header.immediate, header.bytes);
  return {};
}

std::string BulkStream::take_data(const BulkHeader& header) {
  std::byte* local = nullptr;
  {
    MutexLock lock(mutex_);
    const auto found = in_flight_.find(header.piece);
    if (found == in_flight_.end() || found->second.piece.bytes != header.bytes ||
        !advance(lock, header.piece, PieceEvent::kData)) {
      return violation("the peer sent " + std::to_string(header.bytes) +
                       " bytes of data for piece " + std::to_string(header.piece) +
                       " of a transfer, but this side did not request them");
    }
    local = found->second.piece.local;  // stays valid: this thread handles the outcome
  }
  return receive_bytes(local, header.bytes);
}

std::string BulkStream::take_done(const BulkHeader& header) {
  const Status outcome = refused(header.status);
  const PieceEvent event = outcome.ok() ? PieceEvent::kDone : PieceEvent::kRefusal;
  MutexLock lock(mutex_);
  if (advance(lock, header.piece, event, outcome)) return {};
  return violation("the peer reported the end of piece " + std::to_string(header.piece) +
                   " of a transfer, but this side does not wait for this piece");
}

// Returns false if the event is impossible. Completes a piece that reaches kOver.
bool BulkStream::advance(MutexLock& lock, uint64_t id, PieceEvent event, const Status& outcome) {
  const auto found = in_flight_.find(id);
  if (found == in_flight_.end()) return false;
  const auto next = after(kPieceTransitions, found->second.state, event);
  if (!next) return false;
  found->second.state = *next;
  if (!outcome.ok()) found->second.outcome = outcome;
  if (*next != PieceState::kOver) return true;
  const auto node = in_flight_.extract(found);
  const InFlight& flying = node.mapped();
  queued_bytes_.fetch_sub(flying.piece.bytes, std::memory_order_relaxed);
  if (can_request()) call_sender_locked();
  lock.unlock();
  if (resumable_ && flying.piece.is_answered()) resumable_->confirm(flying.end);
  flying.piece.transfer->piece_done(flying.outcome);
  lock.lock();
  return true;
}

std::string BulkStream::queue_answer(const BulkHeader& asked, Code code) {
  MutexLock lock(mutex_);
  if (answers_.size() >= kMaxInFlight) {
    return violation("the peer has more than " + std::to_string(kMaxInFlight) +
                     " unanswered transfers on a bulk socket");
  }
  answers_.push_back({asked, code});
  drive_briefly(lock, Meanwhile::kLargeAnswer);
  return {};
}

BulkStream::Message BulkStream::answer_message(const Answer& answer) {
  Message message;
  BulkHeader done;
  done.kind = BulkHeader::kDone;
  done.status = static_cast<uint32_t>(answer.code);
  done.piece = answer.asked.piece;
  message.header = done;
  if (answer.asked.kind != BulkHeader::kRead) return message;
  Result<std::shared_ptr<ExposedRegions::Entry>> region =
      regions_.find(answer.asked.region, answer.asked.offset, answer.asked.bytes);
  if (!region) {
    message.header.status = static_cast<uint32_t>(region.status().code());
    return message;
  }
  after_peer(order_.for_sanitizer());  // this side's puts caused the peer's request
  message.header.kind = BulkHeader::kData;
  message.header.bytes = answer.asked.bytes;
  message.payload = (*region)->base + answer.asked.offset;
  message.payload_bytes = answer.asked.bytes;
  message.region = message.kept = std::move(*region);
  message.is_kept = resumable_ != nullptr;
  message.has_done = true;
  message.done = done;
  return message;
}

// Makes one attempt to send. Returns false if the socket is full, or has failed (*why). A region
// may be withdrawn at any time, so each pin lasts for one call, which does not block. For a
// withdrawn region, sends filler bytes, because the header has announced the length.
bool BulkStream::push(Blocking blocking, std::string* why) {
  // The filler bytes: zeros, which are only read. There are kPinnedBytes of them, because with a
  // cipher a repeated send must offer as many bytes as before.
  static std::byte kZeros[kPinnedBytes];
  Message& message = *message_;
  std::array<iovec, 3> pieces;
  size_t count = 0;
  const auto add = [&](const void* data, uint64_t bytes) {
    if (bytes != 0) pieces[count++] = {const_cast<void*>(data), bytes};
  };
  const uint64_t header_sent = std::min<uint64_t>(message.sent, sizeof message.header);
  const uint64_t at = std::min(message.sent - header_sent, message.payload_bytes);
  uint64_t some = message.payload_bytes - at;
  add(reinterpret_cast<const std::byte*>(&message.header) + header_sent,
      sizeof message.header - header_sent);
  KeptPiece kept;
  std::optional<ExposedRegions::Pin> pin;
  const std::byte* source = message.payload + at;
  if (some != 0 && message.region) {
    pin.emplace(*message.region);
    some = std::min<uint64_t>(some, kPinnedBytes);
    if (!*pin) {
      message.done.status = static_cast<uint32_t>(Code::kNotFound);
      source = kZeros;
    }
  }
  if (message.is_kept && some != 0) kept = {count, source == kZeros ? nullptr : message.kept};
  add(source, some);
  if (message.has_done && at + (kDoneWithData ? some : 0) == message.payload_bytes) {
    // After kDone, puts of the peer may allow this side to write to the memory that was read.
    before_peer(order_.for_sanitizer());
    const uint64_t done_sent = message.sent - header_sent - at;
    add(reinterpret_cast<const std::byte*>(&message.done) + done_sent,
        sizeof message.done - done_sent);
  }
  const bool waits = blocking == Blocking::kYes && !message.region;
  const int flags = waits ? 0 : MSG_DONTWAIT;
  const std::span<const iovec> all = std::span(pieces).first(count);
  const ssize_t sent = resumable_ ? resumable_->send(all, flags, kept) : socket_.send(all, flags);
  if (sent >= 0) {
    message.sent += static_cast<uint64_t>(sent);
    sent_ += static_cast<uint64_t>(sent);
    return true;
  }
  if (!interrupted()) *why = errno == EPIPE ? why_closed(socket_) : last_error();
  return false;
}

}  // namespace rcuda::transport
