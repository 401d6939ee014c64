#include "server/executor/memory/known_bytes.h"

#include <algorithm>
#include <cstring>

#include "common/wire/marked_bytes.h"

namespace rcuda::server {
namespace {

constexpr size_t kBlockBytes = 4096;
constexpr size_t kLineBytes = 64;

// Visits the lines of a block that differ from the known bytes. `block`: a copy, which does not
// change.
template <typename Visit>
void each_difference(std::span<const std::byte> block, const std::byte* known, const Visit& visit) {
  for (size_t at = 0; at < block.size(); at += kLineBytes) {
    const size_t bytes = std::min(kLineBytes, block.size() - at);
    if (std::memcmp(&block[at], known + at, bytes) != 0) visit(at, bytes);
  }
}

}  // namespace

uint64_t KnownBytes::sent_all(std::span<const std::byte> bytes) {
  known_.assign(bytes.begin(), bytes.end());
  return ++answer_;
}

void KnownBytes::patched(uint64_t offset, std::span<const std::byte> bytes, const uint8_t* mask) {
  if (!known_.empty()) {
    wire::write_marked(known_.data() + offset, bytes.data(), bytes.size(), mask);
  }
}

bool KnownBytes::add_news(uint64_t answer, std::span<const std::byte> now, size_t most_bytes,
                          std::vector<std::byte>* out, News* news) {
  if (known_.size() != now.size() || answer != answer_) return false;
  std::vector<wire::MirrorPiece> pieces;
  std::vector<std::byte> changed;  // of the pieces
  std::byte block[kBlockBytes];
  for (size_t begin = 0; begin < now.size(); begin += kBlockBytes) {
    const size_t length = std::min(kBlockBytes, now.size() - begin);
    if (std::memcmp(&now[begin], &known_[begin], length) == 0) continue;
    std::memcpy(block, &now[begin], length);
    each_difference({block, length}, &known_[begin], [&](size_t at, size_t bytes) {
      const auto offset = static_cast<uint32_t>(begin + at);
      if (pieces.empty() || pieces.back().offset + pieces.back().bytes != offset) {
        pieces.push_back({offset, 0});
      }
      pieces.back().bytes += static_cast<uint32_t>(bytes);
      changed.insert(changed.end(), block + at, block + at + bytes);
    });
    if (changed.size() > most_bytes) return false;
  }
  const auto padded = [](size_t bytes) { return (bytes + 7) & ~size_t{7}; };
  size_t all = 0;
  for (const wire::MirrorPiece& piece : pieces) all += sizeof piece + padded(piece.bytes);
  if (all > most_bytes) return false;
  const std::byte* from = changed.data();
  for (const wire::MirrorPiece& piece : pieces) {
    const auto* const head = reinterpret_cast<const std::byte*>(&piece);
    out->insert(out->end(), head, head + sizeof piece);
    out->insert(out->end(), from, from + piece.bytes);
    out->resize(padded(out->size()));
    std::memcpy(&known_[piece.offset], from, piece.bytes);
    from += piece.bytes;
  }
  if (!pieces.empty()) ++answer_;
  *news = {static_cast<uint32_t>(pieces.size()), answer_};
  return true;
}

}  // namespace rcuda::server
