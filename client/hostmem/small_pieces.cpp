#include "client/hostmem/small_pieces.h"

#include <algorithm>
#include <bit>
#include <iterator>

namespace rcuda::client {
namespace {

uint64_t aligned(uint64_t address, size_t alignment) {
  return (address + alignment - 1) / alignment * alignment;
}

}  // namespace

template <typename Visit>
void SmallPieces::each_room(uint64_t base, size_t bytes, const Visit& visit) {
  size_t alignment = kLeastBytes;
  for (auto& rooms : rooms_) {
    const uint64_t begin = aligned(base, alignment);
    if (begin < base + bytes) visit(rooms, std::pair{size_t{base + bytes - begin}, base});
    alignment *= 2;
  }
}

void SmallPieces::open(uint64_t base, size_t bytes) {
  holes_.emplace(base, bytes);
  each_room(base, bytes, [](auto& rooms, const auto& room) { rooms.insert(room); });
}

void SmallPieces::close(std::map<uint64_t, size_t>::iterator hole) {
  each_room(hole->first, hole->second, [](auto& rooms, const auto& room) { rooms.erase(room); });
  holes_.erase(hole);
}

void SmallPieces::add(const Chunk& chunk) {
  chunks_.emplace(chunk.base, State{chunk.bytes, 0});
  bytes_ += chunk.bytes;
  open(chunk.base, chunk.bytes);
}

uint64_t SmallPieces::take(size_t bytes) {
  const size_t least = pieces_.size() < kMostAlone ? kLineBytes : kLeastBytes;
  const size_t size = aligned(bytes, least);
  const size_t alignment = std::clamp(std::bit_ceil(bytes), least, kMostAlignment);
  const auto& rooms = rooms_[std::countr_zero(alignment / kLeastBytes)];
  const auto found = rooms.lower_bound({size, 0});
  if (found == rooms.end()) return 0;
  const auto [base, room] = *holes_.find(found->second);
  const uint64_t at = aligned(base, alignment);
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
