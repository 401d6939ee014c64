// The part of Mirrors that makes fetches when a wait of the client has ended.

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/executor/mirrors/mirrors.h"

namespace rcuda::server {

using Window = wire::ClientWindow;

HandlerResult Mirrors::fetch_after(const wire::MirrorFetchBehindBody& body,
                                   const ReplyTarget& target) {
  if (body.word_behind >= Window::kCompletionCount) return kMalformed;
  const ContextState* const context = objects_.current_context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  return add(
      Asked{body.address, {body.word_behind, body.sequence_behind}, context->id, target, {}});
}

HandlerResult Mirrors::news_after(WordSignal wait, std::vector<wire::MirrorKnown> news,
                                  const ReplyTarget& target) {
  if (news.empty()) return CUDA_ERROR_INVALID_VALUE;
  return add(Asked{0, wait, 0, target, std::move(news)});
}

HandlerResult Mirrors::add(Asked asked) {
  if (asked_.size() >= Window::kSmallReplyCount + Window::kLargeReplyCount) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  asked_.push_back(std::move(asked));
  return kDeferred;
}

template <typename Due>
bool Mirrors::make_all(const Due& is_due) {
  const auto first_due = std::stable_partition(asked_.begin(), asked_.end(),
                                               [&](const Asked& asked) { return !is_due(asked); });
  if (first_due == asked_.end()) return false;
  const std::vector<Asked> due(std::make_move_iterator(first_due),
                               std::make_move_iterator(asked_.end()));
  asked_.erase(first_due, asked_.end());
  for (const Asked& asked : due) make(asked);
  return true;
}

bool Mirrors::fetch_after_waits() {
  return make_all([&](const Asked& asked) { return answers_.has_signalled(asked.wait); });
}

// Runs before a completion word is written. Sends the replies of news_after() that wait for this
// word, so that word and replies leave in one send. (Other fetches need a stream, so they are made
// after the word.)
void Mirrors::answer_before(WordSignal signal) {
  if (asked_.empty() || answers_.has_signalled(signal)) return;
  const auto is_due = [&](const Asked& asked) {
    return !asked.news.empty() && asked.wait.word == signal.word &&
           asked.wait.sequence <= signal.sequence;
  };
  for (Asked& asked : asked_) {
    if (is_due(asked)) asked.target.wake = transport::Wake::kWithNext;
  }
  (void)make_all(is_due);
}

void Mirrors::make(const Asked& asked) {
  if (!asked.news.empty()) return this->news(asked.news, asked.target);
  const ContextState* const before = objects_.current_context();
  CUresult result = objects_.make_current(asked.context);
  if (result == CUDA_SUCCESS) result = fetch_into_reply(asked.address, asked.target);
  if (result != CUDA_SUCCESS) answers_.reply(asked.target, result, {});
  if (before) (void)objects_.make_current(before->id);
}

}  // namespace rcuda::server
