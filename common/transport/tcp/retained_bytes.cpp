#include "common/transport/tcp/retained_bytes.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/mman.h>

#include "common/base/units.h"

namespace rcuda::transport {

Result<RetainedBytes> RetainedBytes::make(size_t bytes) {
  void* const memory = ::mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return Status::from_errno(errno, "allocating " + exact_bytes_text(2 * bytes) +
                                         " for sent bytes that a reconnection may need again");
  }
  RetainedBytes result;
  result.bytes_ = bytes;
  result.memory_ = Mapping(memory, 2 * bytes);
  result.state_ = std::make_unique<State>();
  State& state = *result.state_;
  MutexLock lock(state.mutex);
  const auto blocks = static_cast<int>(bytes / kBlockBytes);
  state.uses.resize(2 * bytes / kBlockBytes);
  for (int index = blocks; index-- > 0;) {
    state.free.push_back(index);
    state.free_to_own.push_back(blocks + index);
  }
  return result;
}

size_t RetainedBytes::room() const {
  State& state = *state_;
  MutexLock lock(state.mutex);
  const size_t left = state.current == kNoBlock ? 0 : kBlockBytes - state.filled;
  return left + state.free.size() * kBlockBytes;
}

void RetainedBytes::append(uint64_t place, std::span<const iovec> pieces, size_t bytes,
                           const KeptPiece& kept) {
  for (size_t i = 0; i < pieces.size() && bytes != 0; ++i) {
    const auto* const data = static_cast<const std::byte*>(pieces[i].iov_base);
    const size_t some = std::min(pieces[i].iov_len, bytes);
    i == kept.index ? keep({place, {data, some, kept.region, nullptr}}) : copy(place, data, some);
    place += some;
    bytes -= some;
  }
}

// Retains a piece by its address, or copies it if its region is retired. If the region is retired
// later, the own() that follows the retirement finds the segment.
void RetainedBytes::keep(Segment segment) {
  if (segment.part.bytes == 0) return;
  State& state = *state_;
  MutexLock lock(state.mutex);
  if (!segment.part.region || !segment.part.region->retired.load()) {
    return push_locked(state, std::move(segment));
  }
  for (size_t at = 0; at < segment.part.bytes; at += kBlockBytes) {
    const size_t some = std::min(kBlockBytes, segment.part.bytes - at);
    Segment copy = room_to_own_locked(state, segment.place + at, some);
    std::memcpy(const_cast<std::byte*>(copy.part.data), segment.part.data + at, some);
    state.segments.push_back(std::move(copy));
  }
}

// Extends the last segment if the new segment continues it in memory.
void RetainedBytes::push_locked(State& state, Segment segment) {
  if (!state.segments.empty()) {
    Segment& last = state.segments.back();
    if (last.end() == segment.place && last.part.data + last.part.bytes == segment.part.data &&
        last.block == segment.block && last.part.region == segment.part.region &&
        !last.part.memory) {
      last.part.bytes += segment.part.bytes;
      return;
    }
  }
  if (segment.block != kNoBlock) ++state.uses[static_cast<size_t>(segment.block)];
  state.segments.push_back(std::move(segment));
}

// The bytes are copied without the mutex: the caller is the only thread that fills `current`.
void RetainedBytes::copy(uint64_t place, const std::byte* data, size_t bytes) {
  State& state = *state_;
  MutexLock lock(state.mutex);
  while (bytes != 0) {
    if (state.current == kNoBlock || state.filled == kBlockBytes) {
      const int full = std::exchange(state.current, state.free.back());
      state.free.pop_back();
      state.filled = 0;
      ++state.uses[static_cast<size_t>(state.current)];  // append() uses the current block
      if (full != kNoBlock) drop_use_locked(state, full);
    }
    const int index = state.current;
    std::byte* const to = block(index) + state.filled;
    const size_t some = std::min(bytes, kBlockBytes - state.filled);
    state.filled += some;
    ++state.uses[static_cast<size_t>(index)];
    lock.unlock();
    std::memcpy(to, data, some);
    lock.lock();
    push_locked(state, {place, {to, some, nullptr, nullptr}, index});
    drop_use_locked(state, index);
    place += some;
    data += some;
    bytes -= some;
  }
}

void RetainedBytes::drop_use_locked(State& state, int block) {
  if (--state.uses[static_cast<size_t>(block)] != 0) return;
  const bool is_to_own = static_cast<size_t>(block) * kBlockBytes >= bytes_;
  (is_to_own ? state.free_to_own : state.free).push_back(block);
}

void RetainedBytes::release(uint64_t place) {
  State& state = *state_;
  MutexLock lock(state.mutex);
  while (!state.segments.empty() && state.segments.front().end() <= place) {
    const int index = state.segments.front().block;
    state.segments.pop_front();
    if (index != kNoBlock) drop_use_locked(state, index);
  }
  if (!state.segments.empty() && state.segments.front().place < place) {
    trim(state.segments.front(), place);
  }
  // No segment uses the current block: fill it again from its beginning, where pages are warm.
  if (state.segments.empty() && state.current != kNoBlock &&
      state.uses[static_cast<size_t>(state.current)] == 1) {
    state.filled = 0;
  }
}

// Each call of own_next() copies one part without the mutex, so that a sending thread does not
// wait. The peer may acknowledge the bytes during the copy.
void RetainedBytes::own(const void* begin, size_t bytes) {
  const auto* const first = static_cast<const std::byte*>(begin);
  while (own_next(*state_, first, first + bytes)) {
  }
}

bool RetainedBytes::own_next(State& state, const std::byte* begin, const std::byte* end) {
  MutexLock lock(state.mutex);
  const auto needed = std::ranges::find_if(state.segments, [&](const Segment& one) {
    return !one.is_own() && one.part.data < end && begin < one.part.data + one.part.bytes;
  });
  if (needed == state.segments.end()) return false;
  const uint64_t place = needed->place;
  const std::byte* const source = needed->part.data;
  const size_t size = std::min(kBlockBytes, needed->part.bytes);
  Segment copy = room_to_own_locked(state, place, size);
  auto* const to = const_cast<std::byte*>(copy.part.data);
  lock.unlock();
  std::memcpy(to, source, size);
  lock.lock();
  // `left` is the part of the segment that remains. It has the same end, unless append() has
  // extended it.
  const auto left =
      std::ranges::find_if(state.segments, [&](const Segment& one) { return one.end() > place; });
  // Another thread may have copied this part already, in own() of overlapping memory.
  if (left == state.segments.end() || left->place >= copy.end() || left->is_own()) {
    if (copy.block != kNoBlock) drop_use_locked(state, copy.block);
    return true;
  }
  trim(copy, left->place);
  if (left->end() == copy.end()) {
    *left = std::move(copy);
  } else {
    trim(*left, copy.end());
    state.segments.insert(left, std::move(copy));
  }
  return true;
}

// Returns a segment to copy into: in a free block or, if no block is free, in further memory.
RetainedBytes::Segment RetainedBytes::room_to_own_locked(State& state, uint64_t place,
                                                         size_t bytes) {
  Segment copy{place, {nullptr, bytes, nullptr, nullptr}};
  if (!state.free_to_own.empty()) {
    copy.block = state.free_to_own.back();
    state.free_to_own.pop_back();
    state.uses[static_cast<size_t>(copy.block)] = 1;
    copy.part.data = block(copy.block);
  } else {
    const std::shared_ptr<std::byte[]> memory(new std::byte[bytes]);
    copy.part.data = memory.get();
    copy.part.memory = memory;
  }
  return copy;
}

RetainedBytes::Part RetainedBytes::at(uint64_t place) const {
  State& state = *state_;
  MutexLock lock(state.mutex);
  const auto after =
      std::upper_bound(state.segments.begin(), state.segments.end(), place,
                       [](uint64_t value, const Segment& one) { return value < one.place; });
  Part part = std::prev(after)->part;
  const uint64_t skipped = place - std::prev(after)->place;
  part.data += skipped;
  part.bytes -= skipped;
  return part;
}

}  // namespace rcuda::transport
