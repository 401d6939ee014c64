#include "client/mirror/mirror_news.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "common/base/mutex.h"

namespace rcuda::client {
namespace {

static_assert(kMostNewsAtOnce * sizeof(wire::MirrorNewsHead) <= CallsInFlight::kMostReplyBytes / 3);

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

bool take_one(Answer& answer, MirrorNews* news) {
  wire::MirrorNewsHead head{};
  if (!answer.take(&head)) return false;
  news->state = head.state;
  news->is_complete = head.fetch_all == 0;
  for (uint32_t i = 0; i < head.pieces; ++i) {
    if (!take_piece(answer, news)) return false;
  }
  return true;
}

std::vector<wire::MirrorKnown> known_of(std::span<const MirrorNews> mirrors) {
  std::vector<wire::MirrorKnown> known;
  for (const MirrorNews& news : mirrors) {
    known.push_back({reinterpret_cast<uintptr_t>(news.mirror->address), news.known});
  }
  return known;
}

}  // namespace

MirrorNews::MirrorNews(std::shared_ptr<Mirror> asked) : mirror(std::move(asked)) {
  MutexLock lock(mirrors_mutex);
  known = mirror->answer;
  version = mirror->version;
  sent_versions = mirror->sent_versions;
}

bool may_have_news(const Mirror& mirror) {
  return mirror.is_patched() && mirror.changes_bytes == 0 &&
         mirror.bytes <= transport::kMaxRegionPut &&
         !mirror.session->lacking().contains(wire::Custom::kMirrorNews);
}

void ask_for_news(std::span<MirrorNews> mirrors, CallsInFlight* calls) {
  for (size_t first = 0; first < mirrors.size(); first += kMostNewsAtOnce) {
    const auto part = mirrors.subspan(first, std::min(kMostNewsAtOnce, mirrors.size() - first));
    const std::vector<wire::MirrorKnown> known = known_of(part);
    const wire::MirrorNewsBody body{known.size(), 0, 0, 0};
    calls->add(part.front().mirror->session->in_context(0), {body, std::as_bytes(std::span(known))},
               CallsInFlight::kMostReplyBytes,
               [part](CUresult result, const Reply& reply) { take_news(part, result, reply); });
  }
}

bool begin_news(std::span<const MirrorNews> mirrors, Word word, Session::PendingCall* call) {
  const std::vector<wire::MirrorKnown> known = known_of(mirrors);
  const wire::MirrorNewsBody body{known.size(), word.sequence, word.index, 0};
  Session& session = *mirrors.front().mirror->session;
  const size_t reply_bytes = known.size() <= kFewNews ? kFewNews * sizeof(wire::MirrorNewsHead)
                                                      : CallsInFlight::kMostReplyBytes;
  return session.begin(
      session.in_context(0), {body, std::as_bytes(std::span(known))},
      {.reply_bytes = reply_bytes, .patient = false, .wake = transport::Wake::kWithNext}, call);
}

void take_news(std::span<MirrorNews> mirrors, CUresult result, const Reply& reply) {
  Answer answer(reply.body());
  for (MirrorNews& news : mirrors) {
    if (result == CUDA_SUCCESS && !take_one(answer, &news)) result = CUDA_ERROR_UNKNOWN;
    news.result = result;
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
