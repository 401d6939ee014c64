// KnownBytes: records which bytes of a small mirror the client has, so that an answer contains only
// the bytes that differ.
//
// Several threads of the client may have queries in progress, so the client may not have stored the
// latest answer yet. Each query names the last answer whose bytes the client has stored. The client
// also has the bytes that it sent itself. Call forget() after any other change to the bytes of both
// sides.
// Threads: one at a time. Nothing blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/wire/protocol.h"

namespace rcuda::server {

class KnownBytes {
 public:
  // Records that an answer with all bytes is sent. Returns the number of this answer.
  uint64_t sent_all(std::span<const std::byte> bytes);
  // Records that the client has written the marked bytes (common/wire/marked_bytes.h) on both
  // sides.
  void patched(uint64_t offset, std::span<const std::byte> bytes, const uint8_t* mask);
  void forget() { known_.clear(); }

  struct News {
    uint32_t pieces = 0;
    uint64_t answer = 0;
  };
  // Appends a MirrorPiece, with its bytes, for each part of `now` that the client lacks. These
  // bytes then count as sent. `answer`: the last answer whose bytes the client has stored; 0: none.
  // `now`: all bytes of the mirror; the GPU may be writing to them. Returns false and appends
  // nothing if the client's bytes are unknown, or if the pieces take more than `most_bytes`.
  bool add_news(uint64_t answer, std::span<const std::byte> now, size_t most_bytes,
                std::vector<std::byte>* out, News* news);

 private:
  std::vector<std::byte> known_;  // the bytes as last sent; empty: unknown
  std::vector<uint64_t> sent_;    // for each line of 64 bytes, the answer with its last change
  uint64_t answer_ = 0;           // number of the last answer with bytes
};

}  // namespace rcuda::server
