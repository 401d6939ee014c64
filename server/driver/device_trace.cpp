#include "server/driver/device_trace.h"

#include <algorithm>
#include <utility>

#include "api/traits.h"
#include "common/base/monotonic.h"

namespace rcuda::server {
namespace {

constexpr auto kAnchorAge = std::chrono::seconds(1);
constexpr auto kAnchorPatience = std::chrono::milliseconds(20);
// While this much work is pending, further commands are not measured, because each needs two
// events.
constexpr size_t kMostPending = 4096;

}  // namespace

// Records a new anchor if the last anchor is too old. The anchor's stream has no other work, so the
// event completes immediately, and the event's time is about now.
bool DeviceTrace::take_anchor(Context& context) {
  const Clock::time_point begin = Clock::now();
  if (context.anchor && begin - context.anchor->time < kAnchorAge) return true;
  if (!context.stream &&
      driver_.cuStreamCreate(&context.stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) {
    return false;
  }
  const std::shared_ptr<Anchor> anchor(new Anchor, [&driver = driver_](Anchor* gone) {
    if (gone->event) driver.cuEventDestroy_v2(gone->event);
    delete gone;
  });
  if (driver_.cuEventCreate(&anchor->event, CU_EVENT_DEFAULT) != CUDA_SUCCESS) return false;
  CUresult result = driver_.cuEventRecord(anchor->event, context.stream);
  const Clock::time_point recorded = Clock::now();
  while (result == CUDA_SUCCESS &&
         (result = driver_.cuEventQuery(anchor->event)) == CUDA_ERROR_NOT_READY &&
         Clock::now() - recorded < kAnchorPatience) {
    result = CUDA_SUCCESS;
  }
  if (result != CUDA_SUCCESS) return false;
  anchor->time = recorded + (Clock::now() - recorded) / 2;
  // The old anchor exists until the work that is measured from it has finished.
  context.anchor = anchor;
  return true;
}

void DeviceTrace::before(const wire::CommandHeader& header, std::span<const std::byte> body,
                         uint64_t number) {
  open_ = {};
  // The stream in which the command queues device work; empty if it queues none.
  const auto id = api::member(body, api::traits_of(header.opcode).device_work);
  if (pending_ >= kMostPending || !id || objects_.use_stream(*id, &stream_) != CUDA_SUCCESS) {
    return;
  }
  // An event recorded in a capture would become part of the graph.
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  if (driver_.cuStreamIsCapturing(stream_.handle, &capture) != CUDA_SUCCESS ||
      capture != CU_STREAM_CAPTURE_STATUS_NONE) {
    return;
  }
  ContextState* const current = objects_.current_context();
  if (objects_.make_current(stream_.context->id) != CUDA_SUCCESS) return;
  Context& context = contexts_[stream_.context->id];
  if (take_anchor(context) &&
      driver_.cuEventCreate(&open_.start, CU_EVENT_DEFAULT) == CUDA_SUCCESS &&
      driver_.cuEventCreate(&open_.end, CU_EVENT_DEFAULT) == CUDA_SUCCESS &&
      driver_.cuEventRecord(open_.start, stream_.handle) == CUDA_SUCCESS) {
    open_.anchor = context.anchor;
    open_.event = {monotonic_ns(),
                   0,
                   number,
                   header.opcode,
                   static_cast<uint16_t>(header.thread),
                   wire::TraceEvent::kOnDevice,
                   stream_.context->id,
                   *id};
  } else {
    destroy_events(std::exchange(open_, {}));
  }
  if (current) objects_.make_current(current->id);
}

void DeviceTrace::after() {
  if (!open_.start) return;
  Work work = std::exchange(open_, {});
  if (driver_.cuEventRecord(work.end, stream_.handle) != CUDA_SUCCESS) {
    return destroy_events(work);
  }
  queues_[stream_.key].push_back(std::move(work));
  ++pending_;
}

void DeviceTrace::destroy_events(const Work& work) {
  for (CUevent event : {work.start, work.end}) {
    if (event) driver_.cuEventDestroy_v2(event);
  }
}

bool DeviceTrace::finish(const Work& work, std::vector<wire::TraceEvent>* events) {
  const CUresult result = driver_.cuEventQuery(work.end);
  if (result == CUDA_ERROR_NOT_READY) return false;
  float begin_ms = 0, end_ms = 0;
  if (result == CUDA_SUCCESS &&
      driver_.cuEventElapsedTime(&begin_ms, work.anchor->event, work.start) == CUDA_SUCCESS &&
      driver_.cuEventElapsedTime(&end_ms, work.anchor->event, work.end) == CUDA_SUCCESS) {
    const auto at = [&](float ms) {
      return monotonic_ns(work.anchor->time + std::chrono::duration_cast<Clock::duration>(
                                                  std::chrono::duration<double, std::milli>(ms)));
    };
    wire::TraceEvent event = work.event;
    // The anchor's time is not exact, but the work cannot have begun before it was queued.
    event.begin_ns = std::max(event.begin_ns, at(begin_ms));
    event.end_ns = std::max(event.begin_ns, at(end_ms));
    events->push_back(event);
  }
  destroy_events(work);
  return true;
}

void DeviceTrace::poll(std::vector<wire::TraceEvent>* events) {
  for (auto queue = queues_.begin(); queue != queues_.end();) {
    while (!queue->second.empty() && finish(queue->second.front(), events)) {
      queue->second.pop_front();
      --pending_;
    }
    queue = queue->second.empty() ? queues_.erase(queue) : std::next(queue);
  }
}

void DeviceTrace::forget_all() {
  contexts_.clear();
  queues_.clear();
  pending_ = 0;
  open_ = {};
}

}  // namespace rcuda::server
