#include "client/session/reached_place.h"

#include <utility>

namespace rcuda::client {
namespace {

// A template, because the conversion of a weak_ptr to another type calls lock(), and covers() must
// not.
template <typename One, typename Other>
bool have_same_owner(const std::weak_ptr<One>& one, const std::weak_ptr<Other>& other) {
  return !one.owner_before(other) && !other.owner_before(one);
}

}  // namespace

// Must not call weak_ptr::lock(): its result may be the last reference to the timeline. ~Timeline()
// would then lock the mutex of the host writes, which the caller holds.
bool ReachedPlace::covers(const std::weak_ptr<const Timeline>& timeline, uint64_t position) const {
  return position <= position_ && have_same_owner(timeline_, timeline);
}

bool ReachedPlace::is_in_stream_of(const ReachedPlace& other) const {
  return have_same_owner(timeline_, other.timeline_);
}

bool ReachedPlace::is_reached() {
  MutexLock lock(mutex_);
  return is_reached_;
}

void ReachedPlace::call(std::function<void()> function) {
  {
    MutexLock lock(mutex_);
    if (!is_reached_) {
      functions_.push_back(std::move(function));
      return;
    }
  }
  function();
}

void ReachedPlace::reached() {
  std::vector<std::function<void()>> functions;
  {
    MutexLock lock(mutex_);
    is_reached_ = true;
    functions.swap(functions_);
  }
  for (const auto& function : functions) function();
}

}  // namespace rcuda::client
