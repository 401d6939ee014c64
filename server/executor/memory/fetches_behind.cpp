#include "server/executor/memory/fetches_behind.h"

#include <algorithm>

namespace rcuda::server {

HandlerResult FetchesBehind::add(const wire::MirrorFetchBehindBody& body,
                                 const ReplyTarget& target) {
  using Window = wire::ClientWindow;
  if (body.word_behind >= Window::kCompletionCount) return kMalformed;
  const ContextState* const context = objects_.current_context();
  if (!context) return {CUDA_ERROR_INVALID_CONTEXT, false, false};
  if (asked_.size() >= Window::kSmallReplyCount + Window::kLargeReplyCount) {
    return {CUDA_ERROR_OUT_OF_MEMORY, false, false};
  }
  asked_.push_back({body.address, {body.word_behind, body.sequence_behind}, context->id, target});
  return kDeferred;
}

bool FetchesBehind::poll() {
  const auto first_due = std::stable_partition(
      asked_.begin(), asked_.end(),
      [&](const Asked& asked) { return !answers_.has_signalled(asked.behind); });
  if (first_due == asked_.end()) return false;
  const std::vector<Asked> due(first_due, asked_.end());
  asked_.erase(first_due, asked_.end());
  for (const Asked& asked : due) make(asked);
  return true;
}

void FetchesBehind::make(const Asked& asked) {
  const ContextState* const before = objects_.current_context();
  CUresult result = objects_.make_current(asked.context);
  if (result == CUDA_SUCCESS) result = mirrors_.fetch_into_reply(asked.address, asked.target);
  if (result != CUDA_SUCCESS) answers_.reply(asked.target, result, {});
  if (before) (void)objects_.make_current(before->id);
}

}  // namespace rcuda::server
