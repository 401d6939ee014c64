// The order between the work of different sessions, which cudaStreamWaitEvent makes with an event
// of another server. If work of session A has waited for work of session B, then a wait for A's
// work also covers B's work, so it must fetch the mirrored memory of both.
//
// Threads: any. is_met() may block: while another thread sends a mark into the stream and the
// command ring is full. forget_order() may block: for the answers to the queries of the order.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "client/mirror/fetches_with_wait.h"
#include "client/session/reached_place.h"
#include "client/session/session.h"
#include "client/session/timeline.h"

namespace rcuda::client {

// Queries about the mirrors of an order's earlier session. They travel with a watch of the awaited
// event, so the answers usually arrive before a wait of the later session needs them.
struct EarlyQueries {
  uint64_t order = 0;                   // SessionOrder::number
  std::shared_ptr<ReachedPlace> place;  // of the awaited event
  std::shared_ptr<FetchesWithWait> queries;
};

// Work of `earlier` comes before the work that a stream of another session does after `position`.
struct SessionOrder {
  Session* earlier = nullptr;
  // Identifies the other session's stream by the address of its timeline, which may have ended.
  // Null: the stream has no timeline.
  const Timeline* stream = nullptr;
  std::weak_ptr<Timeline> timeline;  // the same timeline; expired: the stream has ended
  uint64_t position = 0;
  uint64_t number = 0;  // of the note_order() call
  // Of this order, or unanswered ones of the order that it has replaced.
  EarlyQueries early;
  bool operator==(const SessionOrder& other) const {
    return earlier == other.earlier && stream == other.stream && position == other.position;
  }
};

// Notes that the stream of `later` waits for work of `earlier`. Also notes the orders that
// `earlier` has with third sessions, because their work comes before this stream's work, too.
// `sent`: the command that waits. `mirrored`: any_mirrored(). If nothing is mirrored, the orders
// are not kept, because the awaited work cannot use memory that is mirrored later. Returns the
// order's number, or 0 if it is not kept.
uint64_t note_order(Session& earlier, const Route& later, const SentCommand& sent, bool mirrored);
// Whether any order has ever been noted.
bool any_order();
// Returns the orders whose earlier work a wait of this session may cover.
std::vector<SessionOrder> orders_before(const Session& session);
// Whether queries may be sent for this order: it exists, and all earlier queries of the same
// earlier session and stream have been answered.
bool may_query_early(const Session& session, uint64_t order);
// Adds queries of ReachedPlaces::watch() to this order.
void note_early(const Session& session, uint64_t order, std::shared_ptr<ReachedPlace> place,
                std::unique_ptr<MirrorQuestions> queries);
// Removes and returns the queries of the order, if all of them have been answered when the awaited
// event was reached. Returns null otherwise.
std::shared_ptr<FetchesWithWait> take_early(const Session& session, const SessionOrder& order);
// Whether the stream is known to have reached the position, or has ended. Then the earlier work is
// over. Never true for a stream without a timeline.
bool is_met(const SessionOrder& order);
// Removes an order that later waits of this session need not cover.
void forget_order(const Session& session, const SessionOrder& order);

}  // namespace rcuda::client
