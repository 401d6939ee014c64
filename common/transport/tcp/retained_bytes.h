// RetainedBytes: the sent bytes of a stream that the peer has not acknowledged. Bytes are found by
// their place in the stream.
//
// Bytes are copied into blocks of memory, which the kernel allocates page by page at the first use.
// The block that was freed last is used first, because its pages are warm. A KeptPiece is retained
// by its address only, until own() copies those of its bytes that are still needed.
//
// Threads: append() on one thread at a time, the other functions on any. Nothing blocks. Errors:
// make() fails if there is no memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include <sys/uio.h>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/transport/greeting.h"
#include "common/transport/mapping.h"
#include "common/transport/tcp/exposed_regions.h"

namespace rcuda::transport {

// Names the piece of a send() that is retained by its address. Its memory does not change until the
// peer has received its bytes.
struct KeptPiece {
  static constexpr size_t kNone = ~size_t{0};
  size_t index = kNone;
  // Pin the region to read the memory. Null: the memory is valid until ResumableSocket::confirm()
  // of its bytes.
  std::shared_ptr<ExposedRegions::Entry> region;
};

class RetainedBytes {
 public:
  struct Part {
    const std::byte* data = nullptr;
    size_t bytes = 0;
    std::shared_ptr<ExposedRegions::Entry> region;  // as in KeptPiece
    std::shared_ptr<const std::byte[]> memory;      // owns `data`, unless null
  };

  // `bytes`: the most that append() keeps as copies; a multiple of kRetainedBlock.
  static Result<RetainedBytes> make(size_t bytes = kRetainedBytes);

  size_t bytes() const { return bytes_; }
  // The most bytes that may be retained, copied or by their address.
  size_t window() const { return 4 * bytes_; }
  // The number of bytes that append() can certainly copy.
  size_t room() const;
  // Appends the first `bytes` of `pieces` at this place of the stream. Copies the bytes that lie
  // outside of the piece `kept`, so these must be room() bytes at most.
  void append(uint64_t place, std::span<const iovec> pieces, size_t bytes, const KeptPiece& kept);
  // Releases the bytes before this place.
  void release(uint64_t place);
  // Copies the bytes of this memory that are retained by their address only. Before the call, the
  // caller makes sure that append() retains no more of this memory by its address. The memory must
  // not change until own() has returned.
  void own(const void* begin, size_t bytes);
  // Returns some of the bytes from `place` on. The byte at `place` must be retained.
  Part at(uint64_t place) const;

 private:
  static constexpr size_t kBlockBytes = kRetainedBlock;
  static constexpr int kNoBlock = -1;

  struct Segment {
    uint64_t place;
    Part part;
    int block = kNoBlock;  // the block that contains the bytes of `part`
    uint64_t end() const { return place + part.bytes; }
    bool is_own() const { return block != kNoBlock || part.memory; }
  };
  // Removes the bytes before `place`, which lies in the segment.
  static void trim(Segment& segment, uint64_t place) {
    const uint64_t removed = place - segment.place;
    segment.place = place;
    segment.part.data += removed;
    segment.part.bytes -= removed;
  }
  struct State {
    Mutex mutex;
    std::deque<Segment> segments RCUDA_GUARDED_BY(mutex);  // in order of their places
    // The use count of each block: its segments, plus its copies in progress, plus 1 while append()
    // fills it.
    std::vector<uint32_t> uses RCUDA_GUARDED_BY(mutex){};
    // The block that was freed last is at the end.
    std::vector<int> free RCUDA_GUARDED_BY(mutex), free_to_own RCUDA_GUARDED_BY(mutex);
    // The block that append() fills, and the number of its bytes that are filled.
    int current RCUDA_GUARDED_BY(mutex) = kNoBlock;
    size_t filled RCUDA_GUARDED_BY(mutex) = 0;
  };

  RetainedBytes() = default;
  std::byte* block(int index) const {
    return memory_.data() + static_cast<size_t>(index) * kBlockBytes;
  }
  void push_locked(State& state, Segment segment) RCUDA_REQUIRES(state.mutex);
  void keep(Segment segment);
  void copy(uint64_t place, const std::byte* data, size_t bytes);
  void drop_use_locked(State& state, int block) RCUDA_REQUIRES(state.mutex);
  Segment room_to_own_locked(State& state, uint64_t place, size_t bytes)
      RCUDA_REQUIRES(state.mutex);
  bool own_next(State& state, const std::byte* begin, const std::byte* end);

  size_t bytes_ = 0;
  // Holds the blocks of append() and as many blocks of own(). own() does not use the blocks of
  // append(): a thread that has checked room() and then sends needs these blocks for append().
  Mapping memory_;
  std::unique_ptr<State> state_;
};

}  // namespace rcuda::transport
