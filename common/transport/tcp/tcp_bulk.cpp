#include "common/transport/tcp/tcp_bulk.h"

#include <algorithm>
#include <utility>

#include "common/base/usable_processors.h"

namespace rcuda::transport {
namespace {

using Clock = std::chrono::steady_clock;

// The least bytes of a piece. With smaller pieces, the cost of a second stream is higher than its
// gain. Pieces without an immediate cost more, because the peer answers each with a message.
constexpr uint64_t kMinPieceBytes = 128u << 10;
constexpr uint64_t kMinPieceBytesWithImmediate = 32u << 10;
// The least bytes of a piece while many transfers are in progress. Whole transfers then keep all
// streams busy, so more pieces only add cost.
constexpr uint64_t kMinPieceBytesAmongMany = 256u << 10;
// The least bytes of a piece with few processors. Each further piece, and each thread that is woken
// although the caller could send, takes a processor from other threads.
constexpr uint64_t kMinPieceBytesOfFew = 512u << 10;
constexpr unsigned kFewProcessors = 4;
// A requesting thread with no other work sends a piece of up to this size itself, because the
// kernel takes the piece in about 40 us.
constexpr uint64_t kAwaitedBytes = 256u << 10;
// Transfers without immediate that follow each other within this time are a burst. After the first
// few of a burst, the sending threads send the rest: the calling thread has other work, and the
// sending threads stay awake.
constexpr auto kBurstGap = std::chrono::microseconds(50);
constexpr uint32_t kFewOfBurst = 4;

}  // namespace

TcpBulk::TcpBulk(std::vector<Socket> streams, const BulkStream::Shared& shared,
                 const ImmediateArrived& on_immediate, const BulkStream::OnError& on_error)
    : has_few_processors_(usable_processors() < kFewProcessors) {
  for (Socket& stream : streams) {
    const auto index = static_cast<uint32_t>(streams_.size());
    streams_.push_back(
        std::make_unique<BulkStream>(std::move(stream), index, shared, on_immediate, on_error));
  }
}

Status TcpBulk::start() {
  for (const auto& stream : streams_) RCUDA_RETURN_IF_ERROR(stream->start());
  return {};
}

bool TcpBulk::in_burst() {
  const Clock::time_point now = Clock::now();
  if (now - last_.exchange(now, std::memory_order_relaxed) >= kBurstGap) burst_ = 0;
  return ++burst_ > kFewOfBurst;
}

// The streams' threads send several pieces in parallel, so the caller sends at most the last piece.
// A read sends only a small request. A caller of write_in_order() may hold locks, so it sends
// nothing: sending may run the TransferDone of other transfers.
BulkStream::Sender TcpBulk::sender_of(const TransferRequest& what, const BulkStream::Piece& piece,
                                      bool among_many) const {
  using Sender = BulkStream::Sender;
  if (!what.to_peer) return Sender::kCallerIfSmall;
  if (among_many || what.in_order) return Sender::kThread;
  const bool is_awaited = what.immediate != 0 && what.company == Company::kAwaited;
  const bool is_last = piece.offset + piece.bytes == what.offset + what.bytes;
  if (is_awaited && is_last && has_few_processors_) return Sender::kCallerAlone;
  if (is_awaited && is_last && piece.bytes <= kAwaitedBytes) return Sender::kCaller;
  return piece.bytes == what.bytes ? Sender::kCallerIfSmall : Sender::kThread;
}

void TcpBulk::transfer(const TransferRequest& what, uint32_t after_puts, TransferDone done) {
  if (what.bytes == 0) return done({});
  const bool among_many = what.immediate == 0 ? in_burst() : what.company == Company::kMany;
  const uint64_t share = (what.bytes + streams_.size() - 1) / streams_.size();
  const uint64_t least = what.immediate == 0                      ? kMinPieceBytes
                         : among_many                             ? kMinPieceBytesAmongMany
                         : what.bytes <= BulkStream::kDirectBytes ? BulkStream::kDirectBytes
                                                                  : kMinPieceBytesWithImmediate;
  const uint64_t piece_bytes = std::clamp(share, has_few_processors_ ? kMinPieceBytesOfFew : least,
                                          BulkStream::kMaxPieceBytes);
  const size_t pieces = (what.bytes + piece_bytes - 1) / piece_bytes;
  const auto transfer = std::make_shared<PendingTransfer>(pieces, std::move(done));
  for (uint64_t at = 0; at < what.bytes; at += piece_bytes) {
    // Chooses the stream with the fewest queued bytes. If several have the fewest, chooses the
    // first of them: its threads are most likely awake.
    BulkStream* best = streams_.front().get();
    for (const auto& other : streams_) {
      if (other->queued_bytes() < best->queued_bytes()) best = other.get();
    }
    BulkStream::Piece piece;
    piece.to_peer = what.to_peer;
    piece.region = static_cast<uint64_t>(what.region);
    piece.offset = what.offset + at;
    piece.local = what.local + at;
    piece.bytes = std::min<uint64_t>(piece_bytes, what.bytes - at);
    piece.immediate = what.immediate;
    piece.in_order = what.in_order;
    piece.after_puts = after_puts;
    piece.transfer = transfer;
    const BulkStream::Sender sender = sender_of(what, piece, among_many);
    best->submit(std::move(piece), sender);
  }
}

void TcpBulk::stop(const Status& why) {
  for (const auto& stream : streams_) stream->stop(why);
}

void TcpBulk::join() {
  for (const auto& stream : streams_) stream->join();
}

void TcpBulk::lose(const std::string& why) {
  for (const auto& stream : streams_) stream->lose(why);
}

void TcpBulk::limit_unacknowledged(std::chrono::milliseconds limit) {
  for (const auto& stream : streams_) stream->limit_unacknowledged(limit);
}

void TcpBulk::abandon() noexcept {
  for (const auto& stream : streams_) stream->abandon();
}

}  // namespace rcuda::transport
