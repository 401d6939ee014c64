// A ring of commands, of events, or of messages between workers: frames in order from one sender to
// one receiver, in the receiver's window of a Link.
//
// The sender makes one put for a frame (two where the ring wraps), so a posted kernel launch is one
// RDMA write. The receiver puts only the credit (`consumed`), once for many frames. The ring does
// not interpret frames. The sender (RingWriter) lives in one process, the receiver (RingReader) in
// the other.
//
//   in the receiver's window
//     want_offset      u64  value of `consumed` that a blocked writer waits for; if it is not above
//                           the reported value, no writer is blocked
//     ring_offset      ring_bytes of frames, each of them contiguous and 8-byte aligned:
//
//       +0   u32 payload_bytes   1 ... max_frame_bytes; or kWrapMark: the next frame is at the
//                                start of the ring
//       +4   u32 sequence        low half of the frame's number; frames count from 1
//       +8   payload, padded with zeros to a multiple of 8
//       ...  u64 stamp           frame_stamp(number), the last word of the put: once it is visible,
//                                the whole frame is. A wrap mark has a number, but no stamp
//
//   in the sender's window
//     consumed_offset  u64  bytes taken out of the ring since the start, with padding and skipped
//                           ends; written every quarter of the ring, or when `want` is reached
//
// A word that has not been written yet is zero: the reader clears the frames that it has consumed
// before it returns their space. So old payload is never read as a header or a stamp.
//
// Trust. Neither side trusts the other. The reader copies a frame out of the window before the
// frame is used (the peer can change its bytes at any time) and checks length, sequence, stamp and
// bounds. The writer checks that `consumed` only grows and never passes what was sent. A violation
// is kProtocol; the owner should then close the Link.
//
// Threads. RingWriter: one caller at a time (Channel holds a lock for the order of commands).
// append() blocks while the ring is full. RingReader: one thread; pending() may run inside
// Link::wait on that thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "common/base/status.h"
#include "common/transport/link.h"

namespace rcuda::wire {

inline constexpr size_t kMaxFrameBytes = 64u << 10;
inline constexpr uint32_t kWrapMark = 0xffff'ffff;

// The place of a ring; both sides are built with the same values. All are multiples of 8.
// ring_bytes is at least four times the largest frame, so that a frame always fits after a wrap.
struct RingLayout {
  uint64_t ring_offset = 0;
  uint64_t ring_bytes = 0;
  uint64_t want_offset = 0;
  uint64_t consumed_offset = 0;
  uint32_t max_frame_bytes = kMaxFrameBytes;  // of payload

  // Whether the ring fits into a receiver's and a sender's window of these sizes.
  Status check(size_t receiver_window_bytes, size_t sender_window_bytes) const;
};

// Returns the bytes of the ring that a frame with `payload_bytes` takes.
constexpr uint64_t frame_bytes(uint64_t payload_bytes) {
  return 8 + (payload_bytes + 7) / 8 * 8 + 8;
}
constexpr uint64_t frame_header(uint64_t number, uint32_t payload_bytes) {
  return payload_bytes | number << 32;
}
// Returns the stamp of a frame. Never zero, because frame numbers never reach 2^64 - 1.
constexpr uint64_t frame_stamp(uint64_t number) { return ~number; }

class RingWriter {
 public:
  // `link` must outlive the writer.
  RingWriter(transport::Link& link, const RingLayout& layout) : link_(link), layout_(layout) {}

  // Sends one frame, head and body back to back. Blocks while the ring is full. At `deadline`,
  // fails with kTimeout and has sent nothing.
  Status append(std::span<const std::byte> head, std::span<const std::byte> body,
                transport::Wake wake,
                std::chrono::steady_clock::time_point deadline =
                    std::chrono::steady_clock::time_point::max());

 private:
  Status reserve(uint64_t bytes, std::chrono::steady_clock::time_point deadline);
  Status read_consumed();

  transport::Link& link_;
  const RingLayout layout_;
  uint64_t number_ = 1;    // of the next frame
  uint64_t position_ = 0;  // of the next frame in the ring
  uint64_t sent_ = 0;      // bytes since the start
  uint64_t consumed_ = 0;  // `consumed` as last read
};

class RingReader {
 public:
  RingReader(transport::Link& link, const RingLayout& layout);

  // Returns a copy of the next frame's payload, valid until the next call; empty if there is no
  // frame. Also reports consumption to the writer. kProtocol for an invalid frame.
  Result<std::span<const std::byte>> try_next();
  // Whether try_next() has something to do: the predicate for Link::wait.
  bool pending() const;
  // The number of the last frame or wrap mark that try_next() took. Frames and wrap marks are
  // numbered from 1.
  uint64_t taken() const { return number_ - 1; }
  struct Ahead {
    uint64_t number = 0;
    size_t payload_bytes = 0;  // may be more than were copied
  };
  // Copies the first bytes of the next frame that neither try_next() nor look() has returned, and
  // leaves it in the ring; nullopt if none has arrived. An invalid frame is left to try_next(). The
  // peer can change the frame until try_next() copies it.
  std::optional<Ahead> look(std::span<std::byte> to);
  // Where in the receiver's window the next frame's header will be. A nonzero word there means that
  // a frame has arrived. Other threads may read it if the owner gives them this offset. If they
  // read zero because try_next() has cleared the header, they also see what the owner wrote before
  // it called try_next().
  uint64_t next_offset() const { return layout_.ring_offset + position_; }
  // Bytes consumed since the start.
  uint64_t consumed() const { return consumed_; }

 private:
  uint64_t load(uint64_t position) const;
  Status skip_to_start();
  // Clears `written` bytes and returns `bytes` to the writer.
  Status release(uint64_t written, uint64_t bytes);
  Status report_if_due();

  transport::Link& link_;
  const RingLayout layout_;
  std::byte* const ring_;
  const std::byte* const want_;
  std::unique_ptr<std::byte[]> frame_;
  uint64_t number_ = 1;    // of the next frame
  uint64_t position_ = 0;  // of the next frame in the ring
  uint64_t consumed_ = 0;
  uint64_t reported_ = 0;
  uint64_t ahead_number_ = 0, ahead_position_ = 0;  // of the frame that look() returns next
};

}  // namespace rcuda::wire
