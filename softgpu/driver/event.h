// Events and their recordings.
//
// An Event is the object behind a CUevent. Each cuEventRecord gives it a new EventRecord: a Point
// in the recording stream, plus the time at which the stream passed it. A wait uses the record that
// is current at the time of the call, so a later recording does not change what an earlier
// cuStreamWaitEvent waits for. An event that was never recorded counts as complete.
//
// Any thread; nothing blocks. An event that is destroyed while its record is pending leaves the
// handle table immediately; the record lives until the operation that completes it is done.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <cuda.h>

#include "softgpu/driver/timeline.h"

namespace softgpu::driver {

class Context;
struct Capture;
struct GraphNode;
class InterprocessEvent;

struct EventRecord {
  Point point;                      // set before the record is published
  std::atomic<int64_t> time_ns{0};  // stored before the point is completed

  bool complete() const { return point.reached(); }
};

class Event {
 public:
  Event(std::shared_ptr<Context> context, unsigned flags);
  ~Event();

  CUevent handle() { return reinterpret_cast<CUevent>(this); }
  Context& context() const { return *context_; }
  unsigned flags() const { return flags_; }
  bool has_timing() const { return (flags_ & CU_EVENT_DISABLE_TIMING) == 0; }

  std::shared_ptr<EventRecord> record() const;  // null: never recorded
  void set_record(std::shared_ptr<EventRecord> record);

  // `captured`: the event was last recorded in a capturing stream. A stream that waits for the
  // event joins `capture` and depends on `captured_nodes`. Guarded by graph_mutex(), except that
  // `captured` may be read without it.
  std::atomic<bool> captured{false};
  std::weak_ptr<Capture> capture;
  std::vector<GraphNode*> captured_nodes;

  // Set for events shared with other processes (CU_EVENT_INTERPROCESS).
  std::shared_ptr<InterprocessEvent> interprocess;

 private:
  const std::shared_ptr<Context> context_;
  const unsigned flags_;
  mutable std::mutex mutex_;
  std::shared_ptr<EventRecord> record_;
};

// Null for an unknown handle.
std::shared_ptr<Event> event_from_handle(CUevent handle);
// Invalidates the handles of the context's events, when the context is destroyed.
void drop_events(Context& context);

}  // namespace softgpu::driver
