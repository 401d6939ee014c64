// Progress of streams and events without round trips: an object that was found unfinished once gets
// a completion word that the worker writes, so that polling it is a load.
//
// Of a ProgressState (objects/stream.h) `word` is its completion word's index + 1; `watched` the
// word's sequence last asked for; `sequence` what that answer stands for (a stream's uses, an
// event's records), so that later work makes the answer stale; `finished` a state that is known to
// be over; `learned` what the session had learned when the worker last called it unfinished: what
// has been learned since may imply that it is over, so the worker is asked again. An event gives
// its word back when it has the answer: a program may have more events than there are words. A
// stream keeps its own, which its queue is counted by (pace.h). Where no word is left nothing is
// watched, and whoever polls asks the worker each time. Every answer asked for is an event in a
// queue of the device's, which is finite (pace.h): however often and by however many threads a
// stream is polled, one is under way for them. Threads: any.
#pragma once

#include <cstdint>

#include <cuda.h>

#include "client/objects/stream.h"
#include "client/session/session.h"

namespace rcuda::client {

// In place of uses and of what was learned: nobody has asked the worker whether it is unfinished.
inline constexpr uint64_t kNotAsked = 0;

// Asks the worker to report when the stream has done all that is posted by now; the sequence of its
// word then, 0 if no word is left. `queue`: the stream, or the context of the
// legacy default stream. `learned`: of the session, from before the worker was asked. If it was, a
// report that is under way already, of earlier work, will do: the stream is unfinished until then.
uint64_t watch_stream(Session& session, WorkQueue& queue, wire::ObjectId context,
                      wire::ObjectId stream, uint64_t uses, uint64_t learned);
// What an event's progress was last asked for: changes with every record, and with every launch of
// a graph, which may contain records of it.
uint64_t event_state(const Event& event);
void graph_launched();
// Asks it to report when the event is done, unless it will. Only for asking again: destroyed or
// recorded again before, the event may never be reported.
void watch_event(Session& session, Event& event, uint64_t state, uint64_t learned);
// Waits until the event's latest record is done, whatever others do with the event meanwhile.
CUresult await_event(Session& session, const Event& event);
// Asked otherwise, the worker said that this state is finished: the session has learned it.
void note_finished(Session& session, ProgressState& progress, uint64_t state);
// Whether a watch for this state of the object is under way or answered, and the answer if so.
// Unknown as well when it may be finished although the answer has not come.
enum class Progress { kUnknown, kPending, kDone };
Progress progress_of(Session& session, WorkQueue& queue, uint64_t state, CUresult* result);
Progress progress_of(Session& session, Event& event, uint64_t state, CUresult* result);

}  // namespace rcuda::client
