#include "common/wire/ring.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

namespace rcuda::wire {
namespace {

using transport::Bytes;
using transport::Wake;

// Partner of the release store (or of the last word of an RDMA write) that ends the peer's put.
uint64_t load_word(const std::byte* word) {
  return std::atomic_ref(*reinterpret_cast<uint64_t*>(const_cast<std::byte*>(word)))
      .load(std::memory_order_acquire);
}

Bytes bytes_of(const uint64_t& word) { return std::as_bytes(std::span(&word, 1)); }

// The users of a ring close its Link after this error.
Status violation(const std::string& what) {
  return {Code::kProtocol, what + "; closing the connection"};
}

}  // namespace

Status RingLayout::check(size_t receiver_window_bytes, size_t sender_window_bytes) const {
  const auto inside = [](uint64_t offset, uint64_t bytes, uint64_t window) {
    return offset % 8 == 0 && bytes % 8 == 0 && bytes <= window && offset <= window - bytes;
  };
  const bool overlap = want_offset + 8 > ring_offset && want_offset < ring_offset + ring_bytes;
  if (inside(ring_offset, ring_bytes, receiver_window_bytes) &&
      inside(want_offset, 8, receiver_window_bytes) &&
      inside(consumed_offset, 8, sender_window_bytes) && !overlap && max_frame_bytes != 0 &&
      max_frame_bytes <= kMaxFrameBytes && ring_bytes >= 4 * frame_bytes(max_frame_bytes)) {
    return {};
  }
  return {Code::kInvalidArgument, "a message ring of " + std::to_string(ring_bytes) +
                                      " bytes does not fit into the receiver's window of " +
                                      std::to_string(receiver_window_bytes) +
                                      " bytes and the sender's window of " +
                                      std::to_string(sender_window_bytes) +
                                      " bytes: install the same build of rcuda on both hosts"};
}

Status RingWriter::append(Bytes head, Bytes body, Wake wake,
                          std::chrono::steady_clock::time_point deadline) {
  const size_t payload = head.size() + body.size();
  if (payload == 0 || payload > layout_.max_frame_bytes) {
    return {Code::kInvalidArgument, "cannot send a message of " + std::to_string(payload) +
                                        " bytes: a message of this ring has 1 to " +
                                        std::to_string(layout_.max_frame_bytes) + " bytes"};
  }
  const uint64_t bytes = frame_bytes(payload);
  const uint64_t to_end = layout_.ring_bytes - position_;
  const bool wraps = bytes > to_end;
  RCUDA_RETURN_IF_ERROR(reserve(wraps ? to_end + bytes : bytes, deadline));
  if (wraps) {
    const uint64_t mark = frame_header(number_, kWrapMark);
    RCUDA_RETURN_IF_ERROR(
        link_.put(layout_.ring_offset + position_, bytes_of(mark), {}, Wake::kNo));
    ++number_;
    sent_ += to_end;
    position_ = 0;
  }
  constexpr std::byte kZeros[8] = {};
  const uint64_t header = frame_header(number_, static_cast<uint32_t>(payload));
  const uint64_t stamp = frame_stamp(number_);
  const Bytes pieces[] = {bytes_of(header), head, body,
                          Bytes(kZeros, bytes - payload - 2 * sizeof(uint64_t)), bytes_of(stamp)};
  RCUDA_RETURN_IF_ERROR(link_.put(layout_.ring_offset + position_, pieces, wake));
  ++number_;
  sent_ += bytes;
  position_ = bytes == layout_.ring_bytes - position_ ? 0 : position_ + bytes;
  return {};
}

Status RingWriter::read_consumed() {
  const uint64_t consumed = load_word(link_.window().data() + layout_.consumed_offset);
  if (consumed < consumed_ || consumed > sent_) {
    return violation("the peer reports " + std::to_string(consumed) +
                     " consumed bytes of the message ring, but it reported " +
                     std::to_string(consumed_) + " before, and " + std::to_string(sent_) +
                     " were sent");
  }
  consumed_ = consumed;
  return {};
}

Status RingWriter::reserve(uint64_t bytes, std::chrono::steady_clock::time_point deadline) {
  const auto fits = [&] { return sent_ + bytes - consumed_ <= layout_.ring_bytes; };
  if (fits()) [[likely]]
    return {};
  RCUDA_RETURN_IF_ERROR(read_consumed());
  if (fits()) return {};
  const uint64_t want = sent_ + bytes - layout_.ring_bytes;
  RCUDA_RETURN_IF_ERROR(link_.put(layout_.want_offset, bytes_of(want), {}, Wake::kYes));
  Status checked;
  const auto ready = [&] {
    checked = read_consumed();
    return !checked.ok() || fits();
  };
  RCUDA_RETURN_IF_ERROR(link_.wait(ready, deadline));
  return checked;
}

RingReader::RingReader(transport::Link& link, const RingLayout& layout)
    : link_(link),
      layout_(layout),
      ring_(link.window().data() + layout.ring_offset),
      want_(link.window().data() + layout.want_offset),
      frame_(new std::byte[layout.max_frame_bytes]) {}

uint64_t RingReader::load(uint64_t position) const { return load_word(ring_ + position); }

bool RingReader::pending() const {
  const uint64_t want = load_word(want_);
  if (want > reported_ && consumed_ >= want) return true;
  const uint64_t header = load(position_);
  if (header == 0) return false;
  const auto payload = static_cast<uint32_t>(header);
  const uint64_t bytes = frame_bytes(payload);
  // An invalid header is also pending: try_next() reports the problem.
  if (payload == 0 || payload > layout_.max_frame_bytes) return true;
  if (bytes > layout_.ring_bytes - position_) return true;
  return load(position_ + bytes - 8) != 0;
}

Result<std::span<const std::byte>> RingReader::try_next() {
  using Frame = std::span<const std::byte>;
  while (true) {
    const uint64_t header = load(position_);
    if (header == 0) {
      RCUDA_RETURN_IF_ERROR(report_if_due());
      return Frame{};
    }
    const auto payload = static_cast<uint32_t>(header);
    if (header >> 32 != static_cast<uint32_t>(number_)) {
      return violation("the peer wrote message " + std::to_string(header >> 32) +
                       " into the message ring where message " +
                       std::to_string(static_cast<uint32_t>(number_)) + " is expected");
    }
    if (payload == kWrapMark) {
      RCUDA_RETURN_IF_ERROR(skip_to_start());
      continue;
    }
    const uint64_t bytes = frame_bytes(payload);
    if (payload == 0 || payload > layout_.max_frame_bytes ||
        bytes > layout_.ring_bytes - position_) {
      return violation("the peer wrote a message of " + std::to_string(payload) +
                       " bytes into the message ring, but a message has 1 to " +
                       std::to_string(layout_.max_frame_bytes) +
                       " bytes and ends inside of the ring");
    }
    const uint64_t stamp = load(position_ + bytes - 8);
    if (stamp == 0) return Frame{};
    if (stamp != frame_stamp(number_)) {
      return violation("message " + std::to_string(number_) +
                       " of the peer in the message ring has the end stamp of another message");
    }
    std::memcpy(frame_.get(), ring_ + position_ + 8, payload);
    ++number_;
    RCUDA_RETURN_IF_ERROR(release(bytes, bytes));
    return Frame{frame_.get(), payload};
  }
}

std::optional<RingReader::Ahead> RingReader::look(std::span<std::byte> to) {
  if (ahead_number_ < number_) {
    ahead_number_ = number_;
    ahead_position_ = position_;
  }
  uint64_t header = load(ahead_position_);
  const auto is_next = [&] { return header >> 32 == static_cast<uint32_t>(ahead_number_); };
  if (header == 0 || !is_next()) return std::nullopt;
  if (static_cast<uint32_t>(header) == kWrapMark && ahead_position_ != 0) {
    ++ahead_number_;
    ahead_position_ = 0;
    header = load(0);
    if (header == 0 || !is_next()) return std::nullopt;
  }
  const auto payload = static_cast<uint32_t>(header);
  const uint64_t bytes = frame_bytes(payload);
  if (payload == 0 || payload > layout_.max_frame_bytes ||
      bytes > layout_.ring_bytes - ahead_position_ ||
      load(ahead_position_ + bytes - 8) != frame_stamp(ahead_number_)) {
    return std::nullopt;
  }
  std::memcpy(to.data(), ring_ + ahead_position_ + 8, std::min<size_t>(payload, to.size()));
  ahead_position_ = bytes == layout_.ring_bytes - ahead_position_ ? 0 : ahead_position_ + bytes;
  return Ahead{ahead_number_++, payload};
}

Status RingReader::skip_to_start() {
  if (position_ == 0) {
    return violation(
        "the peer wrote a wrap mark at the start of the message ring, where a message must begin");
  }
  ++number_;
  return release(8, layout_.ring_bytes - position_);
}

Status RingReader::release(uint64_t written, uint64_t bytes) {
  // Other threads may be reading the header (next_offset()).
  auto& header = *reinterpret_cast<uint64_t*>(ring_ + position_);
  std::atomic_ref(header).store(0, std::memory_order_release);
  std::memset(ring_ + position_ + 8, 0, written - 8);
  position_ = bytes == layout_.ring_bytes - position_ ? 0 : position_ + bytes;
  consumed_ += bytes;
  return report_if_due();
}

Status RingReader::report_if_due() {
  const uint64_t want = load_word(want_);
  const bool blocked = want > reported_ && consumed_ >= want;
  if (!blocked && consumed_ - reported_ < layout_.ring_bytes / 4) return {};
  reported_ = consumed_;
  return link_.put(layout_.consumed_offset, bytes_of(consumed_), {}, Wake::kYes);
}

}  // namespace rcuda::wire
