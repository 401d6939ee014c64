// The order of work of different sessions: cudaStreamWaitEvent makes it for an event of another
// server. If work of session A has waited for work of session B, then a wait for A's work also
// covers B's work, so it must fetch the mirrored memory of both.
//
// Threads: any. Only is_met() may block: while another thread sends a mark into the stream and the
// command ring is full.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "client/session/session.h"
#include "client/session/timeline.h"

namespace rcuda::client {

// Work of `earlier` comes before the work that a stream of another session does after `position`.
struct SessionOrder {
  Session* earlier = nullptr;
  // Identifies the other session's stream by the address of its timeline, which may have ended.
  // Null: the stream has no timeline.
  const Timeline* stream = nullptr;
  std::weak_ptr<Timeline> timeline;  // the same timeline; expired: the stream has ended
  uint64_t position = 0;
  bool operator==(const SessionOrder& other) const {
    return earlier == other.earlier && stream == other.stream && position == other.position;
  }
};

// Notes that the stream of `later` waits for work of `earlier`. Also notes the orders that
// `earlier` has with third sessions, because their work comes before this stream's work, too.
// `sent`: the command that waits. `mirrored`: any_mirrored(). If nothing is mirrored, the orders
// are not kept, because the awaited work cannot use memory that is mirrored later.
void note_order(Session& earlier, const Route& later, const SentCommand& sent, bool mirrored);
// Whether any order has ever been noted.
bool any_order();
// Returns the orders whose earlier work a wait of this session may cover.
std::vector<SessionOrder> orders_before(const Session& session);
// Whether the stream is known to have reached the position, or has ended. Then the earlier work is
// over. Never true for a stream without a timeline.
bool is_met(const SessionOrder& order);
// Removes an order that later waits of this session need not cover.
void forget_order(const Session& session, const SessionOrder& order);

}  // namespace rcuda::client
