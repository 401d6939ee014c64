#include "common/transport/tcp/retained_bytes.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/mman.h>

namespace rcuda::transport {

Result<RetainedBytes> RetainedBytes::make() {
  void* const memory = ::mmap(nullptr, 2 * kBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return Status::from_errno(errno, "memory for bytes that were sent");
  RetainedBytes result;
  result.memory_ = Mapping(memory, 2 * kBytes);
  result.state_ = std::make_unique<State>();
  State& state = *result.state_;
  MutexLock lock(state.mutex);
  for (int index = kBlocks; index-- > 0;) {
    state.free.push_back(index);
    state.free_to_own.push_back(kBlocks + index);
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

// If the region is not retired yet, its own() follows and finds the segment.
void RetainedBytes::keep(Segment segment) {
  if (segment.part.bytes == 0) return;
  State& state = *state_;
  MutexLock lock(state.mutex);
  if (!segment.part.region || !segment.part.region->retired.load()) {
    return push_locked(state, std::move(segment));
  }
  for (Segment& copy : owned_locked(state, segment)) state.segments.push_back(std::move(copy));
}

// Segments grow while their memory is contiguous.
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
      ++state.uses[static_cast<size_t>(state.current)];  // as long as it is the current one
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
  (block < kBlocks ? state.free : state.free_to_own).push_back(block);
}

void RetainedBytes::release(uint64_t place) {
  State& state = *state_;
  MutexLock lock(state.mutex);
  while (!state.segments.empty() && state.segments.front().end() <= place) {
    const int index = state.segments.front().block;
    state.segments.pop_front();
    if (index != kNoBlock) drop_use_locked(state, index);
  }
  // No segment uses the block: it is filled from its beginning again, whose pages are warm.
  if (state.segments.empty() && state.current != kNoBlock &&
      state.uses[static_cast<size_t>(state.current)] == 1) {
    state.filled = 0;
  }
}

void RetainedBytes::own(const void* begin, size_t bytes) {
  const auto* const first = static_cast<const std::byte*>(begin);
  State& state = *state_;
  MutexLock lock(state.mutex);
  for (size_t i = 0; i < state.segments.size(); ++i) {
    const Part& part = state.segments[i].part;
    const bool is_own = state.segments[i].block != kNoBlock || part.memory;
    if (is_own || part.data >= first + bytes || first >= part.data + part.bytes) continue;
    const std::vector<Segment> owned = owned_locked(state, state.segments[i]);
    const auto at = state.segments.erase(state.segments.begin() + static_cast<ptrdiff_t>(i));
    state.segments.insert(at, owned.begin(), owned.end());
    i += owned.size() - 1;
  }
}

// Copies the segment into free blocks or, if none is left, into further memory.
std::vector<RetainedBytes::Segment> RetainedBytes::owned_locked(State& state,
                                                                const Segment& segment) {
  std::vector<Segment> result;
  for (size_t at = 0; at < segment.part.bytes; at += kBlockBytes) {
    const size_t some = std::min(kBlockBytes, segment.part.bytes - at);
    Segment copy{segment.place + at, {nullptr, some, nullptr, nullptr}};
    std::byte* to = nullptr;
    if (!state.free_to_own.empty()) {
      copy.block = state.free_to_own.back();
      state.free_to_own.pop_back();
      state.uses[static_cast<size_t>(copy.block)] = 1;
      to = block(copy.block);
    } else {
      const std::shared_ptr<std::byte[]> memory(new std::byte[some]);
      to = memory.get();
      copy.part.memory = memory;
    }
    std::memcpy(to, segment.part.data + at, some);
    copy.part.data = to;
    result.push_back(std::move(copy));
  }
  return result;
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
