#include "client/session/quiet_contexts.h"

#include <algorithm>

#include "api/traits.h"

namespace rcuda::client {
namespace {

bool is_among(const std::vector<wire::ObjectId>& contexts, wire::ObjectId context) {
  return std::find(contexts.begin(), contexts.end(), context) != contexts.end();
}

bool queues(uint16_t opcode, std::span<const std::byte> body) {
  const api::CommandTraits& traits = api::traits_of(opcode);
  if (traits.queues == api::Queues::kIfItHolds) return api::holds_stream(traits, body);
  return traits.queues == api::Queues::kWork;
}

}  // namespace

void QuietContexts::sent(uint64_t number, uint16_t opcode, std::span<const std::byte> body) {
  if (queues(opcode, body)) last_queued_ = number;
}

void QuietContexts::waited(Scope scope, wire::ObjectId context, uint64_t before,
                           uint64_t commands) {
  // Nobody knows whether what was queued since came before the question, unless it is the question.
  if (last_queued_ > before && commands > before + 1) return;
  if (quiet_since_ != last_queued_) {
    contexts_.clear();
    default_streams_.clear();
    quiet_since_ = last_queued_;
  }
  std::vector<wire::ObjectId>& among = scope == Scope::kContext ? contexts_ : default_streams_;
  if (!is_among(among, context)) among.push_back(context);
}

bool QuietContexts::is_quiet(Scope scope, wire::ObjectId context) const {
  if (quiet_since_ != last_queued_) return false;
  return is_among(contexts_, context) ||
         (scope == Scope::kDefaultStream && is_among(default_streams_, context));
}

}  // namespace rcuda::client
