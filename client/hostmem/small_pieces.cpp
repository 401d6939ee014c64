#include "client/hostmem/small_pieces.h"

#include <algorithm>
#include <bit>
#include <iterator>

namespace rcuda::client {

void SmallPieces::open(uint64_t base, size_t bytes) {
  holes_.emplace(base, bytes);
  by_bytes_.emplace(bytes, base);
}

void SmallPieces::close(std::map<uint64_t, size_t>::iterator hole) {
  by_bytes_.erase({hole->second, hole->first});
  holes_.erase(hole);
}

void SmallPieces::add(const Chunk& chunk) {
  chunks_.emplace(chunk.base, State{chunk.bytes, 0});
  bytes_ += chunk.bytes;
  open(chunk.base, chunk.bytes);
}

uint64_t SmallPieces::take(size_t bytes) {
  const size_t least = pieces_.size() < kMostAlone ? kLineBytes : kLeastBytes;
  const size_t size = (bytes + least - 1) / least * least;
  const size_t alignment = std::clamp(std::bit_ceil(bytes), least, kMostAlignment);
  auto found = by_bytes_.lower_bound({size, 0});
  if (found != by_bytes_.end() && found->second % alignment != 0) {
    // Wherever such a hole begins, it has an aligned part.
    found = by_bytes_.lower_bound({size + alignment - kLeastBytes, 0});
  }
  if (found == by_bytes_.end()) return 0;
  const auto [room, base] = *found;
  const uint64_t at = (base + alignment - 1) / alignment * alignment;
  close(holes_.find(base));
  if (at > base) open(base, at - base);
  if (base + room > at + size) open(at + size, base + room - (at + size));
  pieces_.emplace(at, size);
  ++std::prev(chunks_.upper_bound(at))->second.pieces;
  return at;
}

std::optional<SmallPieces::Chunk> SmallPieces::give_back(uint64_t address) {
  const auto piece = pieces_.find(address);
  if (piece == pieces_.end()) return std::nullopt;
  uint64_t base = address;
  size_t bytes = piece->second;
  pieces_.erase(piece);
  auto next = holes_.lower_bound(address);
  if (next != holes_.end() && next->first == address + bytes) {
    bytes += next->second;
    close(next++);
  }
  if (next != holes_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == address) {
      base = before->first;
      bytes += before->second;
      close(before);
    }
  }
  const auto chunk = std::prev(chunks_.upper_bound(address));
  if (--chunk->second.pieces != 0) {
    open(base, bytes);
    return std::nullopt;
  }
  const Chunk empty{chunk->first, chunk->second.bytes};
  chunks_.erase(chunk);
  bytes_ -= empty.bytes;
  return empty;
}

}  // namespace rcuda::client
