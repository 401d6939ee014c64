#include "client/objects/stream.h"

#include "client/objects/code.h"
#include "client/session/session.h"

namespace rcuda::client {

WorkQueue::WorkQueue(wire::Kind kind, const Identity& identity, wire::ObjectId stream)
    : Object(kind, identity),
      timeline(identity.session
                   ? identity.session->timelines().make(*identity.session, identity.context, stream)
                   : nullptr) {}

Context::~Context() {
  if (session) session->timelines().end_context(id);
}

Stream::~Stream() {
  if (session) session->timelines().end_stream(timeline);
}

KnownLimits::Moment KnownLimits::now() const {
  MutexLock lock(mutex_);
  return {forgotten_, stack_changes()};
}

bool KnownLimits::find(CUlimit limit, const Moment& now, size_t* value) const {
  MutexLock lock(mutex_);
  const auto found = known_.find(limit);
  if (found == known_.end()) return false;
  if (limit == CU_LIMIT_STACK_SIZE && stack_known_at_ != now.stack_changes) return false;
  *value = found->second;
  return true;
}

void KnownLimits::keep(CUlimit limit, const Moment& asked, size_t value) {
  MutexLock lock(mutex_);
  if (asked.forgotten != forgotten_) return;
  known_[limit] = value;
  if (limit == CU_LIMIT_STACK_SIZE) stack_known_at_ = asked.stack_changes;
}

void KnownLimits::forget() {
  MutexLock lock(mutex_);
  known_.clear();
  ++forgotten_;
}

}  // namespace rcuda::client
