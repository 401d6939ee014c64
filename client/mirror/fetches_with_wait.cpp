#include "client/mirror/fetches_with_wait.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "client/mirror/mirror_patch.h"
#include "common/base/mutex.h"

namespace rcuda::client {
namespace {

// The largest mirror that is fetched whole. A larger mirror would hold a large reply slot, which
// copies need, for as long as the wait.
constexpr size_t kMostBytes = wire::ClientWindow::kSmallReplyBytes - sizeof(wire::ReplyHeader) -
                              sizeof(uint64_t) - sizeof(wire::MirrorState);

// The most mirrors that are fetched whole with one wait. Each holds a reply slot for as long as the
// wait, and other threads need slots to send the work for which the caller waits.
constexpr size_t kMostQuestions = 4;

}  // namespace

FetchesWithWait::~FetchesWithWait() {
  const auto is_open = [](const Question& question) { return !question.answered; };
  // Wake the worker: the queries do not wake it, and perhaps the caller has not sent a command that
  // wakes it.
  if (news_call_ || std::any_of(questions_.begin(), questions_.end(), is_open)) {
    (void)session_.call(session_.in_context(0), wire::PingBody{});
  }
  for (Question& question : questions_) {
    Reply reply;
    if (!question.answered) (void)answer(question, &reply);
  }
  (void)news();
}

void FetchesWithWait::ask(const std::vector<std::shared_ptr<Mirror>>& mirrors, Word word) {
  for (const auto& mirror : mirrors) {
    MutexLock lock(mirrors_mutex);
    if (!has_exchanged(mirror->stage.get()) || !mirror->fetched) continue;
    const bool has_news = may_have_news(*mirror) && mirror->pulls_without_news == 0;
    lock.unlock();
    if (!has_news) {
      ask_alone(mirror, word);
    } else if (news_.size() < kMostNewsAtOnce) {
      news_.emplace_back(mirror);
    }
  }
  if (news_.size() == 1 && news_.front().mirror->bytes <= kMostBytes) {
    ask_alone(news_.front().mirror, word);
    news_.clear();
  }
  if (!news_.empty() && !begin_news(news_, word, &news_call_.emplace())) {
    news_call_.reset();
    news_.clear();
  }
}

std::vector<MirrorNews> FetchesWithWait::news() {
  if (news_call_) {
    Reply reply;
    const CUresult result = session_.finish(*news_call_, &reply);
    take_news(news_, result, reply);
    news_call_.reset();
  }
  return std::move(news_);
}

void FetchesWithWait::ask_alone(const std::shared_ptr<Mirror>& mirror, Word word) {
  if (mirror->bytes > kMostBytes || mirror->changes_bytes != 0) return;
  if (questions_.size() == kMostQuestions) return;
  uint64_t version, sent_versions;
  {
    MutexLock lock(mirrors_mutex);
    version = mirror->version;
    sent_versions = mirror->sent_versions;
  }
  wire::MirrorFetchBehindBody body{};
  body.address = reinterpret_cast<uintptr_t>(mirror->address);
  body.word_behind = word.index;
  body.sequence_behind = word.sequence;
  Question& question = questions_.emplace_back();
  question.mirror = mirror;
  question.version = version;
  question.sent_versions = sent_versions;
  const CallOptions options{.reply_bytes = sizeof(wire::MirrorState) + mirror->bytes,
                            .patient = false,
                            .wake = transport::Wake::kWithNext};
  if (!session_.begin(session_.in_context(mirror->context), body, options, &question.call)) {
    questions_.pop_back();
  }
}

CUresult FetchesWithWait::answer(Question& question, Reply* reply) {
  question.answered = true;
  return session_.finish(question.call, reply);
}

bool FetchesWithWait::take(Mirror& mirror) {
  const auto found = std::find_if(questions_.begin(), questions_.end(), [&](const Question& asked) {
    return asked.mirror.get() == &mirror && !asked.answered;
  });
  if (found == questions_.end()) return false;
  Reply reply;
  const CUresult result = answer(*found, &reply);
  MutexLock lock(mirrors_mutex);
  if (mirror.is(MirrorStage::kEnded)) return true;
  wire::MirrorState state{};
  // The answer is used only if all exchanges since the query were patches. merge_fetched() adds the
  // patches that the answer lacks.
  if (result != CUDA_SUCCESS || reply.body().size() != sizeof state + mirror.bytes ||
      mirror.version - mirror.sent_versions != found->version - found->sent_versions) {
    return false;
  }
  std::memcpy(&state, reply.body().data(), sizeof state);
  if (is_outdated(mirror, state)) return false;
  std::vector<std::byte> bytes(reply.body().begin() + sizeof state, reply.body().end());
  merge_fetched(mirror, bytes.data(), {{0, mirror.bytes}}, state);
  mirror.stage.move(MirrorEvent::kFetch, mirror.name);
  mirror.answer = state.answer;
  mirror.unfetched.clear();
  return true;
}

}  // namespace rcuda::client
