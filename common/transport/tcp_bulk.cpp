#include "common/transport/tcp_bulk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "common/transport/socket_io.h"

namespace rcuda::transport {
namespace {

// Below this, cutting a transfer costs more than a second stream gains.
constexpr uint64_t kMinPieceBytes = 256u << 10;
// Held pins are as long as one system call: this bounds what one of them moves.
constexpr size_t kPinnedBytes = 1u << 20;
constexpr size_t kScratchBytes = 64u << 10;

std::string last_error() {
  return errno == EPIPE || errno == ECONNRESET
             ? "the peer closed a bulk connection"
             : std::string("bulk connection: ") + std::strerror(errno);
}

bool interrupted() { return errno == EAGAIN || errno == EINTR; }

void poll_for(int socket, short events) {
  pollfd entry{socket, events, 0};
  ::poll(&entry, 1, -1);
}

Status refused(uint32_t code) {
  switch (static_cast<Code>(code)) {
    case Code::kOk:
      return {};
    case Code::kNotFound:
      return {Code::kNotFound, "the peer's region does not exist"};
    case Code::kInvalidArgument:
      return {Code::kInvalidArgument, "transfer outside of the peer's region"};
    default:
      return {Code::kProtocol, "the peer refused a transfer"};
  }
}

}  // namespace

BulkStream::BulkStream(UniqueFd socket, ExposedRegions& regions,
                       std::function<void(const std::string&)> on_error)
    : socket_(std::move(socket)), regions_(regions), on_error_(std::move(on_error)) {}

BulkStream::~BulkStream() {
  if (receiver_.joinable()) receiver_.join();
  if (sender_.joinable()) sender_.join();
}

void BulkStream::start() {
  std::lock_guard lock(mutex_);
  ++running_;
  receiver_ = std::thread([this] { receive(); });
}

void BulkStream::start_sender_locked() {
  if (sender_.joinable()) return;
  ++running_;
  sender_ = std::thread([this] { send(); });
}

void BulkStream::submit(Piece piece) {
  Status why;
  {
    std::lock_guard lock(mutex_);
    if (!stopped_) {
      queued_bytes_.fetch_add(piece.bytes, std::memory_order_relaxed);
      requests_.push_back(std::move(piece));
      start_sender_locked();
      to_send_.notify_one();
      return;
    }
    why = why_stopped_;
  }
  piece.transfer->piece_done(why);
}

void BulkStream::stop(const Status& why) {
  std::lock_guard lock(mutex_);
  if (std::exchange(stopped_, true)) return;
  why_stopped_ = why;
  ::shutdown(socket_.get(), SHUT_RDWR);
  to_send_.notify_all();
}

// Memory of pieces may only be given back to their callers when no thread can touch it any more.
void BulkStream::thread_ended() {
  std::vector<std::shared_ptr<Transfer>> failed;
  Status why;
  {
    std::lock_guard lock(mutex_);
    if (--running_ != 0) return;
    why = why_stopped_;
    for (const auto& [id, flying] : in_flight_) failed.push_back(flying.piece.transfer);
    for (const Piece& piece : requests_) failed.push_back(piece.transfer);
    in_flight_.clear();
    requests_.clear();
  }
  for (const auto& transfer : failed) transfer->piece_done(why);
}

void BulkStream::receive() {
  std::string why;
  while (why.empty()) why = receive_one();
  on_error_(why);
  stop({Code::kUnavailable, why});  // usually stopped already, through on_error_
  thread_ended();
}

void BulkStream::send() {
  std::unique_lock lock(mutex_);
  bool answer_next = true;  // answers and requests take turns
  while (true) {
    const auto can_request = [&] { return !requests_.empty() && in_flight_.size() < kMaxInFlight; };
    to_send_.wait(lock, [&] { return stopped_ || !answers_.empty() || can_request(); });
    if (stopped_) break;
    std::string why;
    if (!answers_.empty() && (answer_next || !can_request())) {
      const Answer answer = answers_.front();
      answers_.pop_front();
      lock.unlock();
      why = send_answer(answer);
      lock.lock();
    } else {
      const uint64_t id = next_piece_++;
      const Piece piece = requests_.front();
      requests_.pop_front();
      in_flight_.emplace(id, InFlight{piece});
      lock.unlock();
      why = send_piece(id, piece);
      lock.lock();
      if (why.empty()) piece_sent(lock, id);
    }
    answer_next = !answer_next;
    if (why.empty()) continue;
    lock.unlock();
    on_error_(why);
    stop({Code::kUnavailable, why});
    lock.lock();
  }
  lock.unlock();
  thread_ended();
}

std::string BulkStream::receive_bytes(std::byte* data, size_t bytes) {
  while (bytes != 0) {
    const ssize_t count = ::recv(socket_.get(), data, bytes, MSG_WAITALL);
    if (count == 0) return "the peer closed a bulk connection";
    if (count < 0 && !interrupted()) return last_error();
    if (count < 0) continue;
    data += count;
    bytes -= static_cast<size_t>(count);
  }
  return {};
}

std::string BulkStream::receive_one() {
  BulkHeader header;
  std::string why = receive_bytes(writable_bytes_of(header).data(), sizeof header);
  if (!why.empty()) return why;
  if (header.bytes > kMaxPieceBytes) return "protocol violation: oversized piece of a transfer";
  switch (header.kind) {
    case BulkHeader::kWrite:
      return take_write(header);
    case BulkHeader::kRead:
      return queue_answer(header, Code::kOk);
    case BulkHeader::kData:
      return take_data(header);
    case BulkHeader::kDone:
      return take_done(header);
    default:
      return "protocol violation: unknown message on a bulk connection";
  }
}

std::string BulkStream::take_write(const BulkHeader& header) {
  Result<std::shared_ptr<ExposedRegions::Entry>> region =
      regions_.find(header.region, header.offset, header.bytes);
  Code code = region ? Code::kOk : region.status().code();
  uint64_t at = 0;
  while (at < header.bytes) {
    ssize_t count = -1;
    if (code == Code::kOk) {
      const ExposedRegions::Pin pin(**region);
      if (pin) {
        const size_t want = std::min<uint64_t>(header.bytes - at, kPinnedBytes);
        count = ::recv(socket_.get(), (*region)->base + header.offset + at, want, MSG_DONTWAIT);
      } else {
        code = Code::kNotFound;
      }
    }
    if (code != Code::kOk) {
      scratch_.resize(kScratchBytes);
      const size_t want = std::min<uint64_t>(header.bytes - at, kScratchBytes);
      count = ::recv(socket_.get(), scratch_.data(), want, 0);
    }
    if (count == 0) return "the peer closed a bulk connection";
    if (count > 0) {
      at += static_cast<uint64_t>(count);
    } else if (interrupted()) {
      poll_for(socket_.get(), POLLIN);
    } else {
      return last_error();
    }
  }
  return queue_answer(header, code);
}

std::string BulkStream::take_data(const BulkHeader& header) {
  std::byte* local = nullptr;
  {
    std::lock_guard lock(mutex_);
    const auto found = in_flight_.find(header.piece);
    if (found == in_flight_.end() || found->second.piece.to_peer || found->second.done ||
        found->second.piece.bytes != header.bytes) {
      return "protocol violation: data that nobody asked for";
    }
    local = found->second.piece.local;  // stays valid: only this thread completes pieces
  }
  return receive_bytes(local, header.bytes);
}

std::string BulkStream::take_done(const BulkHeader& header) {
  std::unique_lock lock(mutex_);
  const auto found = in_flight_.find(header.piece);
  if (found == in_flight_.end() || found->second.done) {
    return "protocol violation: end of an unknown transfer";
  }
  found->second.done = true;
  found->second.outcome = refused(header.status);
  if (found->second.sent) complete(lock, header.piece);
  return {};
}

// The outcome may overtake the sending thread's return from its last send. Only when both are over
// is the caller's memory free; a peer that lies about the outcome must not make this side read on.
void BulkStream::piece_sent(std::unique_lock<std::mutex>& lock, uint64_t id) {
  InFlight& flying = in_flight_.at(id);
  flying.sent = true;
  if (flying.done) complete(lock, id);
}

void BulkStream::complete(std::unique_lock<std::mutex>& lock, uint64_t id) {
  const auto node = in_flight_.extract(id);
  const InFlight& flying = node.mapped();
  queued_bytes_.fetch_sub(flying.piece.bytes, std::memory_order_relaxed);
  if (!requests_.empty()) to_send_.notify_one();
  lock.unlock();
  flying.piece.transfer->piece_done(flying.outcome);
  lock.lock();
}

std::string BulkStream::queue_answer(const BulkHeader& asked, Code code) {
  std::lock_guard lock(mutex_);
  if (answers_.size() >= kMaxInFlight) return "protocol violation: too many transfers at once";
  answers_.push_back({asked, code});
  start_sender_locked();
  to_send_.notify_one();
  return {};
}

std::string BulkStream::send_bytes(const BulkHeader& header, const std::byte* data, size_t bytes) {
  iovec pieces[] = {{const_cast<BulkHeader*>(&header), sizeof header},
                    {const_cast<std::byte*>(data), bytes}};
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = bytes == 0 ? 1 : 2;
  while (message.msg_iovlen != 0) {
    const ssize_t count = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (count < 0 && !interrupted()) return last_error();
    auto sent = static_cast<size_t>(std::max<ssize_t>(count, 0));
    while (message.msg_iovlen != 0 && sent >= message.msg_iov->iov_len) {
      sent -= message.msg_iov->iov_len;
      ++message.msg_iov;
      --message.msg_iovlen;
    }
    if (message.msg_iovlen == 0) break;
    message.msg_iov->iov_base = static_cast<std::byte*>(message.msg_iov->iov_base) + sent;
    message.msg_iov->iov_len -= sent;
  }
  return {};
}

std::string BulkStream::send_piece(uint64_t id, const Piece& piece) {
  BulkHeader header;
  header.kind = piece.to_peer ? BulkHeader::kWrite : BulkHeader::kRead;
  header.piece = id;
  header.region = piece.region;
  header.offset = piece.offset;
  header.bytes = piece.bytes;
  return send_bytes(header, piece.local, piece.to_peer ? piece.bytes : 0);
}

// The caller's region may be withdrawn at any moment: it is pinned for one call at a time, and what
// cannot be sent any more is made up, because the stream owes the peer the bytes it announced.
std::string BulkStream::send_region(const BulkHeader& header, ExposedRegions::Entry& region,
                                    uint64_t offset) {
  std::string why = send_bytes(header, nullptr, 0);
  for (uint64_t at = 0; why.empty() && at < header.bytes;) {
    ssize_t count;
    {
      const ExposedRegions::Pin pin(region);
      const size_t want = std::min<uint64_t>(header.bytes - at, kPinnedBytes);
      if (pin) {
        count = ::send(socket_.get(), region.base + offset + at, want, MSG_DONTWAIT | MSG_NOSIGNAL);
      } else {
        static constexpr std::byte kZeros[4096] = {};
        count = ::send(socket_.get(), kZeros, std::min(want, sizeof kZeros),
                       MSG_DONTWAIT | MSG_NOSIGNAL);
      }
    }
    if (count > 0) {
      at += static_cast<uint64_t>(count);
    } else if (interrupted()) {
      poll_for(socket_.get(), POLLOUT);
    } else {
      why = last_error();
    }
  }
  return why;
}

std::string BulkStream::send_answer(const Answer& answer) {
  Code code = answer.code;
  if (answer.asked.kind == BulkHeader::kRead) {
    Result<std::shared_ptr<ExposedRegions::Entry>> region =
        regions_.find(answer.asked.region, answer.asked.offset, answer.asked.bytes);
    if (region) {
      BulkHeader data;
      data.kind = BulkHeader::kData;
      data.piece = answer.asked.piece;
      data.bytes = answer.asked.bytes;
      std::string why = send_region(data, **region, answer.asked.offset);
      if (!why.empty()) return why;
      if ((*region)->retired.load()) code = Code::kNotFound;
    } else {
      code = region.status().code();
    }
  }
  BulkHeader done;
  done.kind = BulkHeader::kDone;
  done.status = static_cast<uint32_t>(code);
  done.piece = answer.asked.piece;
  return send_bytes(done, nullptr, 0);
}

TcpBulk::TcpBulk(std::vector<UniqueFd> sockets, ExposedRegions& regions,
                 const std::function<void(const std::string&)>& on_error) {
  for (UniqueFd& socket : sockets) {
    streams_.push_back(std::make_unique<BulkStream>(std::move(socket), regions, on_error));
  }
}

void TcpBulk::start() {
  for (const auto& stream : streams_) stream->start();
}

void TcpBulk::transfer(bool to_peer, RegionId region, uint64_t offset, std::byte* local,
                       size_t bytes, TransferDone done) {
  if (bytes == 0) return done({});
  const uint64_t share = (bytes + streams_.size() - 1) / streams_.size();
  const uint64_t piece_bytes = std::clamp(share, kMinPieceBytes, BulkStream::kMaxPieceBytes);
  const size_t pieces = (bytes + piece_bytes - 1) / piece_bytes;
  const auto transfer = std::make_shared<Transfer>(pieces, std::move(done));
  for (uint64_t at = 0; at < bytes; at += piece_bytes) {
    // The least loaded stream, starting from another one each time.
    const size_t first = next_.fetch_add(1, std::memory_order_relaxed);
    BulkStream* best = streams_[first % streams_.size()].get();
    for (size_t i = 1; i < streams_.size(); ++i) {
      BulkStream* other = streams_[(first + i) % streams_.size()].get();
      if (other->queued_bytes() < best->queued_bytes()) best = other;
    }
    const uint64_t count = std::min<uint64_t>(piece_bytes, bytes - at);
    best->submit(
        {to_peer, static_cast<uint64_t>(region), offset + at, local + at, count, transfer});
  }
}

void TcpBulk::stop(const Status& why) {
  for (const auto& stream : streams_) stream->stop(why);
}

void TcpBulk::abandon() noexcept {
  for (const auto& stream : streams_) stream->abandon();
}

}  // namespace rcuda::transport
