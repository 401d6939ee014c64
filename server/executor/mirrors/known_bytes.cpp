#include "server/executor/mirrors/known_bytes.h"

#include <algorithm>
#include <cstring>

#include "common/wire/marked_bytes.h"

namespace rcuda::server {
namespace {

constexpr size_t kBlockBytes = 4096;
constexpr size_t kLineBytes = 64;

constexpr size_t lines_in(size_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes; }

}  // namespace

uint64_t KnownBytes::sent_all(std::span<const std::byte> bytes) {
  ++answer_;
  const bool all_new = known_.size() != bytes.size();
  sent_.resize(lines_in(bytes.size()));
  for (size_t at = 0; at < bytes.size(); at += kLineBytes) {
    const size_t length = std::min(kLineBytes, bytes.size() - at);
    const bool changed = all_new || std::memcmp(&bytes[at], &known_[at], length) != 0;
    if (changed) sent_[at / kLineBytes] = answer_;
  }
  known_.assign(bytes.begin(), bytes.end());
  return answer_;
}

void KnownBytes::patched(uint64_t offset, std::span<const std::byte> bytes, const uint8_t* mask) {
  if (!known_.empty()) {
    wire::write_marked(known_.data() + offset, bytes.data(), bytes.size(), mask);
  }
}

bool KnownBytes::add_news(uint64_t answer, std::span<const std::byte> now, size_t most_bytes,
                          std::vector<std::byte>* out, News* news) {
  if (known_.size() != now.size()) {
    if (answer != 0 || answer_ != 0) return false;
    known_.assign(now.begin(), now.end());
    sent_.assign(lines_in(now.size()), 1);  // 1 is above `answer`, so all lines are lacking
  }
  if (answer > answer_) return false;
  const bool may_lack = answer == 0 || answer != answer_;
  const auto is_lacking = [&](size_t at) { return sent_[at / kLineBytes] > answer; };
  std::vector<wire::MirrorPiece> pieces;
  std::vector<std::byte> changed;  // of the pieces
  std::byte block[kBlockBytes];
  for (size_t begin = 0; begin < now.size(); begin += kBlockBytes) {
    const size_t length = std::min(kBlockBytes, now.size() - begin);
    bool differs = std::memcmp(&now[begin], &known_[begin], length) != 0;
    for (size_t at = 0; may_lack && !differs && at < length; at += kLineBytes) {
      differs = is_lacking(begin + at);
    }
    if (!differs) continue;
    std::memcpy(block, &now[begin], length);  // the GPU cannot change this copy
    for (size_t at = 0; at < length; at += kLineBytes) {
      const size_t bytes = std::min(kLineBytes, length - at);
      const size_t offset = begin + at;
      if (!is_lacking(offset) && std::memcmp(block + at, &known_[offset], bytes) == 0) continue;
      if (pieces.empty() || pieces.back().offset + pieces.back().bytes != offset) {
        pieces.push_back({static_cast<uint32_t>(offset), 0});
      }
      pieces.back().bytes += static_cast<uint32_t>(bytes);
      changed.insert(changed.end(), block + at, block + at + bytes);
    }
    if (changed.size() > most_bytes) return false;
  }
  const auto padded = [](size_t bytes) { return (bytes + 7) & ~size_t{7}; };
  size_t all = 0;
  for (const wire::MirrorPiece& piece : pieces) all += sizeof piece + padded(piece.bytes);
  if (all > most_bytes) return false;
  if (!pieces.empty()) ++answer_;
  const std::byte* from = changed.data();
  for (const wire::MirrorPiece& piece : pieces) {
    const auto* const head = reinterpret_cast<const std::byte*>(&piece);
    out->insert(out->end(), head, head + sizeof piece);
    out->insert(out->end(), from, from + piece.bytes);
    out->resize(padded(out->size()));
    std::memcpy(&known_[piece.offset], from, piece.bytes);
    std::fill_n(&sent_[piece.offset / kLineBytes], lines_in(piece.bytes), answer_);
    from += piece.bytes;
  }
  *news = {static_cast<uint32_t>(pieces.size()), answer_};
  return true;
}

}  // namespace rcuda::server
