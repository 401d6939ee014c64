// How much a stream may have queued before who queues more waits for it.
//
// A driver's queues are finite: a stream of an H200 takes 1020 launches, copies or records behind
// one that does not end (580), and the next caller waits. The worker's one thread must not be that
// caller, or what other threads ask of other streams and devices would wait as well, for ever if
// the first stream waits for them. So the client counts what it queues, has the worker report now
// and then how far the stream is, and lets the thread wait here that would fill the queue.
//
// Of a QueueState (objects/stream.h) `queued` counts the commands of its stream, `done` is how many
// of these are known to be over, `pace_at` when to look closer, `pace` what is asked of the worker.
// Context::waits counts how often somebody has waited for all that is in a context; `seen_waits` is
// what `home`, the stream's context, had when last looked at. Counters wrap.
//
// Counted is every command that names a stream, though a driver's queues have room for more waits
// for events. Not counted is that a large graph takes more room (81 launches of a graph of 100
// nodes side by side fill an H200's queue), and that streams beyond the eighth share queues.
// Threads: any; nothing is locked while a thread waits.
#pragma once

#include <cstdint>

#include "common/wire/protocol.h"

namespace rcuda::client {

struct WorkQueue;
class Session;

// Counts one more command about to be queued; waits while the queue is full, until there is room or
// the session is lost. `stream`: its id, 0 for a context's legacy default stream.
void pace(Session& session, WorkQueue& queue, wire::ObjectId stream);
// Somebody has waited for the first `queued` commands of a stream.
void note_done(WorkQueue& queue, uint32_t queued);

}  // namespace rcuda::client
