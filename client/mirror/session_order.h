// The order between sessions that waits for mirrored memory must respect: a wait for work of one
// session also covers the work of other sessions for whose signals that work has waited
// (cudaStreamWaitEvent with an event of another server).
//
// Threads: any. Nothing blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "client/session/session.h"
#include "client/session/timeline.h"

namespace rcuda::client {

// Work of `earlier` comes before the work of a stream of another session from `position` on.
struct SessionOrder {
  Session* earlier = nullptr;
  std::shared_ptr<Timeline> stream;  // of the other session; null: it has no timeline
  uint64_t position = 0;
  bool operator==(const SessionOrder&) const = default;
};

// Notes that the work of `later` waits for work of `earlier`, and so for the work that comes before
// that work. `sent`: the command that waits.
void note_order(Session& earlier, const Route& later, const SentCommand& sent);
// Whether note_order() has been called.
bool any_order();
// The orders whose earlier work a wait of this session may cover.
std::vector<SessionOrder> orders_before(const Session& session);
// Whether the stream has reached the position. Then the earlier work is over.
bool is_met(const SessionOrder& order);
// Later waits of this session need not cover this order.
void forget_order(const Session& session, const SessionOrder& order);

}  // namespace rcuda::client
