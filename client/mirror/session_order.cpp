#include "client/mirror/session_order.h"

#include <algorithm>
#include <atomic>
#include <map>

#include "common/base/mutex.h"

namespace rcuda::client {
namespace {

using Orders = std::map<const Session*, std::vector<SessionOrder>>;  // key: the later session

Mutex mutex;
// Never destroyed: threads may wait while the process ends.
Orders& orders RCUDA_GUARDED_BY(mutex) = *new Orders;
std::atomic<bool> any{false};

// Adds an order. It replaces an earlier order with the same session and stream, because the later
// position covers the earlier work as well.
void add(std::vector<SessionOrder>& known, const SessionOrder& order) {
  const auto same = std::ranges::find_if(known, [&](const SessionOrder& one) {
    return one.earlier == order.earlier && one.stream == order.stream;
  });
  if (same == known.end()) {
    known.push_back(order);
  } else if (same->timeline.expired() || same->position < order.position) {
    *same = order;  // expired: a new stream at the old stream's address
  }
}

}  // namespace

void note_order(Session& earlier, const Route& later, const SentCommand& sent, bool mirrored) {
  any.store(true, std::memory_order_release);
  if (!mirrored) return;
  SessionOrder order{&earlier, later.timeline, {}, sent.position};
  if (later.timeline) order.timeline = later.timeline->weak_from_this();
  MutexLock lock(mutex);
  const std::vector<SessionOrder> before = orders[&earlier];
  std::vector<SessionOrder>& known = orders[later.session];
  add(known, order);
  for (const SessionOrder& one : before) {
    order.earlier = one.earlier;
    if (order.earlier != later.session) add(known, order);
  }
}

bool any_order() { return any.load(std::memory_order_acquire); }

std::vector<SessionOrder> orders_before(const Session& session) {
  if (!any_order()) return {};
  MutexLock lock(mutex);
  const auto found = orders.find(&session);
  return found == orders.end() ? std::vector<SessionOrder>() : found->second;
}

bool is_met(const SessionOrder& order) {
  if (!order.stream) return false;
  const std::shared_ptr<Timeline> timeline = order.timeline.lock();
  return !timeline || timeline->has_reached(order.position);
}

void forget_order(const Session& session, const SessionOrder& order) {
  MutexLock lock(mutex);
  std::erase(orders[&session], order);
}

}  // namespace rcuda::client
