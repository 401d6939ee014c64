#include "client/mirror/session_order.h"

#include <algorithm>
#include <atomic>
#include <map>

#include "common/base/mutex.h"

namespace rcuda::client {
namespace {

using Orders = std::map<const Session*, std::vector<SessionOrder>>;  // by the later session

Mutex mutex;
// Never destroyed: threads may wait while the process ends.
Orders& orders = *new Orders RCUDA_GUARDED_BY(mutex);
std::atomic<bool> any{false};

// A later signal to the same stream also covers the earlier signals.
void add(std::vector<SessionOrder>& known, const SessionOrder& order) {
  const auto same = std::ranges::find_if(known, [&](const SessionOrder& one) {
    return one.earlier == order.earlier && one.stream == order.stream;
  });
  if (same == known.end()) {
    known.push_back(order);
  } else {
    same->position = std::max(same->position, order.position);
  }
}

}  // namespace

void note_order(Session& earlier, const Route& later, const SentCommand& sent) {
  const auto stream = later.timeline ? later.timeline->weak_from_this().lock() : nullptr;
  MutexLock lock(mutex);
  const std::vector<SessionOrder> before = orders[&earlier];
  std::vector<SessionOrder>& known = orders[later.session];
  add(known, {&earlier, stream, sent.position});
  for (const SessionOrder& order : before) {
    if (order.earlier != later.session) add(known, {order.earlier, stream, sent.position});
  }
  any.store(true, std::memory_order_release);
}

bool any_order() { return any.load(std::memory_order_acquire); }

std::vector<SessionOrder> orders_before(const Session& session) {
  if (!any_order()) return {};
  MutexLock lock(mutex);
  const auto found = orders.find(&session);
  return found == orders.end() ? std::vector<SessionOrder>() : found->second;
}

bool is_met(const SessionOrder& order) {
  return order.stream && order.stream->has_reached(order.position);
}

void forget_order(const Session& session, const SessionOrder& order) {
  MutexLock lock(mutex);
  std::erase(orders[&session], order);
}

}  // namespace rcuda::client
