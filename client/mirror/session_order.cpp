#include "client/mirror/session_order.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "common/base/mutex.h"

namespace rcuda::client {
namespace {

using Orders = std::map<const Session*, std::vector<SessionOrder>>;  // key: the later session

Mutex mutex;
// Never destroyed: threads may wait while the process ends.
Orders& orders RCUDA_GUARDED_BY(mutex) = *new Orders;
std::atomic<bool> any{false};
uint64_t last_number RCUDA_GUARDED_BY(mutex) = 0;

// Adds an order. It gets the queries of the order that it replaces, because destroying them would
// wait for their answers. It replaces an earlier order with the same session and stream, because
// the later position covers the earlier work as well.
void add(std::vector<SessionOrder>& known, const SessionOrder& order) {
  const auto same = std::ranges::find_if(known, [&](const SessionOrder& one) {
    return one.earlier == order.earlier && one.stream == order.stream;
  });
  if (same == known.end()) {
    known.push_back(order);
  } else if (same->timeline.expired() || same->position < order.position) {
    EarlyQueries unanswered = std::move(same->early);
    *same = order;  // expired: a new stream at the old stream's address
    same->early = std::move(unanswered);
  }
}

// Returns null if there is no such order.
SessionOrder* find(const Session& session, uint64_t number) RCUDA_REQUIRES(mutex) {
  for (SessionOrder& order : orders[&session]) {
    if (order.number == number) return &order;
  }
  return nullptr;
}

}  // namespace

uint64_t note_order(Session& earlier, const Route& later, const SentCommand& sent, bool mirrored) {
  any.store(true, std::memory_order_release);
  if (!mirrored) return 0;
  SessionOrder order{&earlier, later.timeline, {}, sent.position, 0, {}};
  if (later.timeline) order.timeline = later.timeline->weak_from_this();
  MutexLock lock(mutex);
  const uint64_t number = order.number = ++last_number;
  const std::vector<SessionOrder> before = orders[&earlier];
  std::vector<SessionOrder>& known = orders[later.session];
  add(known, order);
  for (const SessionOrder& one : before) {
    order.earlier = one.earlier;
    order.number = ++last_number;
    if (order.earlier != later.session) add(known, order);
  }
  return number;
}

bool any_order() { return any.load(std::memory_order_acquire); }

std::vector<SessionOrder> orders_before(const Session& session) {
  if (!any_order()) return {};
  MutexLock lock(mutex);
  const auto found = orders.find(&session);
  return found == orders.end() ? std::vector<SessionOrder>() : found->second;
}

bool may_query_early(const Session& session, uint64_t order) {
  MutexLock lock(mutex);
  const SessionOrder* const known = find(session, order);
  return known && (!known->early.queries || known->early.queries->is_answered());
}

void note_early(const Session& session, uint64_t order, std::shared_ptr<ReachedPlace> place,
                std::unique_ptr<MirrorQuestions> queries) {
  EarlyQueries early{order, std::move(place), nullptr};
  early.queries.reset(static_cast<FetchesWithWait*>(queries.release()));
  MutexLock lock(mutex);
  SessionOrder* const known = find(session, order);
  if (known) std::swap(known->early, early);
  lock.unlock();  // `early` ends after this: it may wait for answers
}

std::shared_ptr<FetchesWithWait> take_early(const Session& session, const SessionOrder& order) {
  MutexLock lock(mutex);
  SessionOrder* const known = find(session, order.number);
  if (!known || known->early.order != order.number || !known->early.queries ||
      !known->early.place->is_reached_with_watch() || !known->early.queries->is_answered()) {
    return nullptr;
  }
  return std::exchange(known->early, {}).queries;
}

bool is_met(const SessionOrder& order) {
  if (!order.stream) return false;
  const std::shared_ptr<Timeline> timeline = order.timeline.lock();
  return !timeline || timeline->has_reached(order.position);
}

void forget_order(const Session& session, const SessionOrder& order) {
  std::vector<SessionOrder> ended;  // destroyed without the mutex: it may wait for answers
  MutexLock lock(mutex);
  std::vector<SessionOrder>& known = orders[&session];
  const auto found = std::ranges::find(known, order);
  if (found == known.end()) return;
  ended.push_back(std::move(*found));
  known.erase(found);
  lock.unlock();
}

}  // namespace rcuda::client
