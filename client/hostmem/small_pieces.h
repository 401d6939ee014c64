// SmallPieces: divides chunks of addresses into small pieces.
//
// It handles addresses only; the caller owns the memory. Chunks begin at multiples of
// kMostAlignment. take() uses the smallest hole that has room. Two chunks must not be adjacent,
// because their holes would join.
// Threads: one at a time. Nothing blocks. Each call takes logarithmic time.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace rcuda::client {

class SmallPieces {
 public:
  // A piece of kMostAlignment bytes or more is aligned to kMostAlignment. A smaller piece is
  // aligned to its size, rounded up to a power of two. A piece has a cache line of its own while
  // there are fewer than kMostAlone pieces. Later pieces may share a line: each launch compares
  // whole chunks, so thousands of pieces must not take a line each.
  static constexpr size_t kLineBytes = 64, kLeastBytes = 16, kMostAlignment = 512;
  static constexpr size_t kMostAlone = 1024;
  struct Chunk {
    uint64_t base = 0;
    size_t bytes = 0;
  };

  void add(const Chunk& chunk);
  // Returns the address of a new piece of `bytes`; 0 if no chunk has room.
  uint64_t take(size_t bytes);
  bool has(uint64_t address) const { return pieces_.contains(address); }
  // Frees a piece of take(). If the chunk has no other piece, removes the chunk and returns it.
  std::optional<Chunk> give_back(uint64_t address);
  // Returns the size of all chunks together.
  size_t bytes() const { return bytes_; }

 private:
  struct State {
    size_t bytes = 0;
    size_t pieces = 0;
  };
  // For each alignment at which the hole has room, calls visit() with the set of rooms_ for this
  // alignment and with the hole's element of that set.
  template <typename Visit>
  void each_room(uint64_t base, size_t bytes, const Visit& visit);
  void open(uint64_t base, size_t bytes);
  void close(std::map<uint64_t, size_t>::iterator hole);

  std::map<uint64_t, State> chunks_;   // by address, like all maps here
  std::map<uint64_t, size_t> pieces_;  // address to size in bytes
  std::map<uint64_t, size_t> holes_;   // address to size in bytes
  // For each alignment: the holes, each with the bytes from its first aligned address to its end.
  std::array<std::set<std::pair<size_t, uint64_t>>,
             std::countr_zero(kMostAlignment / kLeastBytes) + 1>
      rooms_;
  size_t bytes_ = 0;
};

}  // namespace rcuda::client
