#include "client/mirror/mirror_news.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace rcuda::client {
namespace {

// With this limit, heads leave most of an answer to the bytes.
constexpr size_t kMostAtOnce = 512;
static_assert(kMostAtOnce * sizeof(wire::MirrorNewsHead) <= CallsInFlight::kMostReplyBytes / 3);

class Answer {
 public:
  explicit Answer(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  bool take(T* value) {
    const std::span<const std::byte> from = take_bytes(sizeof *value);
    if (from.empty()) return false;
    std::memcpy(value, from.data(), sizeof *value);
    return true;
  }
  // Returns an empty span if fewer bytes are left.
  std::span<const std::byte> take_bytes(size_t count) {
    if (count > bytes_.size()) return {};
    return std::exchange(bytes_, bytes_.subspan(count)).first(count);
  }

 private:
  std::span<const std::byte> bytes_;
};

bool take_piece(Answer& answer, MirrorNews* news) {
  wire::MirrorPiece piece{};
  if (!answer.take(&piece) || piece.bytes == 0 || piece.offset > news->mirror->bytes ||
      piece.bytes > news->mirror->bytes - piece.offset) {
    return false;
  }
  const auto content = answer.take_bytes((size_t{piece.bytes} + 7) & ~size_t{7});
  if (content.empty()) return false;
  news->runs.push_back({piece.offset, piece.bytes});
  news->bytes.insert(news->bytes.end(), content.begin(), content.begin() + piece.bytes);
  return true;
}

bool take_news(Answer& answer, MirrorNews* news) {
  wire::MirrorNewsHead head{};
  if (!answer.take(&head)) return false;
  news->state = head.state;
  news->is_complete = head.fetch_all == 0;
  for (uint32_t i = 0; i < head.pieces; ++i) {
    if (!take_piece(answer, news)) return false;
  }
  return true;
}

void take_answer(const std::vector<MirrorNews*>& mirrors, CUresult result, const Reply& reply) {
  Answer answer(reply.body());
  for (MirrorNews* const news : mirrors) {
    if (result == CUDA_SUCCESS && !take_news(answer, news)) result = CUDA_ERROR_UNKNOWN;
    news->result = result;
  }
}

}  // namespace

bool may_have_news(const Mirror& mirror) {
  return mirror.is_patched() && mirror.changes_bytes == 0 &&
         mirror.bytes <= transport::kMaxRegionPut &&
         !mirror.session->lacking().contains(static_cast<uint16_t>(wire::Custom::kMirrorNews));
}

void ask_for_news(const std::vector<MirrorNews*>& mirrors, CallsInFlight* calls) {
  for (size_t first = 0; first < mirrors.size(); first += kMostAtOnce) {
    const std::vector<MirrorNews*> part(
        mirrors.begin() + static_cast<ptrdiff_t>(first),
        mirrors.begin() + static_cast<ptrdiff_t>(std::min(first + kMostAtOnce, mirrors.size())));
    std::vector<wire::MirrorKnown> known;
    for (const MirrorNews* news : part) {
      known.push_back({reinterpret_cast<uintptr_t>(news->mirror->address), news->mirror->answer});
    }
    const Mirror& any = *part.front()->mirror;
    const wire::MirrorNewsBody body{known.size()};
    calls->add(any.session->in_context(any.context),
               static_cast<uint16_t>(wire::Custom::kMirrorNews), std::as_bytes(std::span(&body, 1)),
               std::as_bytes(std::span(known)), CallsInFlight::kMostReplyBytes,
               [part](CUresult result, const Reply& reply) { take_answer(part, result, reply); });
  }
}

std::vector<Run> place_news(const MirrorNews& news) {
  Mirror& mirror = *news.mirror;
  std::vector<Run> blocks;
  for (const Run& run : news.runs) {
    const size_t begin = run.at / kMirrorBlockBytes * kMirrorBlockBytes;
    const size_t end = run.at + run.bytes;
    for (size_t at = begin; at < end; at += kMirrorBlockBytes) {
      if (!blocks.empty() && at < blocks.back().at + blocks.back().bytes) continue;
      append(&blocks, {at, mirror.block_length(at)});
    }
  }
  for (const Run& run : blocks) {
    std::memcpy(mirror.fetched + run.at, mirror.known.get() + run.at, run.bytes);
  }
  const std::byte* from = news.bytes.data();
  for (const Run& run : news.runs) {
    std::memcpy(mirror.fetched + run.at, from, run.bytes);
    from += run.bytes;
  }
  return blocks;
}

}  // namespace rcuda::client
