#include "server/worker/device_trace.h"

#include <algorithm>
#include <utility>

#include "api/traits.h"

namespace rcuda::server {
namespace {

constexpr auto kAnchorAge = std::chrono::seconds(1);
constexpr auto kAnchorPatience = std::chrono::milliseconds(20);
// Work under way beyond this is not timed: each takes two events of the driver.
constexpr size_t kMostPending = 4096;

uint64_t nanoseconds(std::chrono::steady_clock::time_point time) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

}  // namespace

// On a stream without work the event comes at once, so now is when it was recorded.
bool DeviceTrace::take_anchor(Context& context) {
  const Clock::time_point begin = Clock::now();
  if (context.anchor && begin - context.anchor->time < kAnchorAge) return true;
  const api::DriverTable& driver = executor_.driver();
  if (!context.stream &&
      driver.cuStreamCreate(&context.stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) {
    return false;
  }
  auto anchor = std::make_shared<Anchor>();
  if (driver.cuEventCreate(&anchor->event, CU_EVENT_DEFAULT) != CUDA_SUCCESS) return false;
  CUresult result = driver.cuEventRecord(anchor->event, context.stream);
  const Clock::time_point recorded = Clock::now();
  while (result == CUDA_SUCCESS &&
         (result = driver.cuEventQuery(anchor->event)) == CUDA_ERROR_NOT_READY &&
         Clock::now() - recorded < kAnchorPatience) {
    result = CUDA_SUCCESS;
  }
  if (result != CUDA_SUCCESS) {
    driver.cuEventDestroy_v2(anchor->event);
    return false;
  }
  anchor->time = recorded + (Clock::now() - recorded) / 2;
  // The one before stays for work that was timed from it; two events a second are not missed.
  context.anchor = std::move(anchor);
  return true;
}

bool DeviceTrace::take_event(Context& context, CUevent* event) {
  if (context.free_events.empty()) {
    return executor_.driver().cuEventCreate(event, CU_EVENT_DEFAULT) == CUDA_SUCCESS;
  }
  *event = context.free_events.back();
  context.free_events.pop_back();
  return true;
}

void DeviceTrace::before(const wire::CommandHeader& header, std::span<const std::byte> body,
                         uint64_t number) {
  open_ = {};
  // The stream of a command that gives the GPU something to do.
  const auto id = api::member(body, api::traits_of(header.opcode).device_work);
  if (pending_ >= kMostPending || !id || executor_.find_stream(*id, &stream_) != CUDA_SUCCESS) {
    return;
  }
  const api::DriverTable& driver = executor_.driver();
  // An event recorded in a capture would become part of the graph.
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  if (driver.cuStreamIsCapturing &&
      (driver.cuStreamIsCapturing(stream_.handle, &capture) != CUDA_SUCCESS ||
       capture != CU_STREAM_CAPTURE_STATUS_NONE)) {
    return;
  }
  ContextState* const current = executor_.current_context();
  if (executor_.make_current(stream_.context->id) != CUDA_SUCCESS) return;
  Context& context = contexts_[stream_.context->id];
  CUevent start = nullptr;
  if (take_anchor(context) && take_event(context, &start) && take_event(context, &open_.end) &&
      driver.cuEventRecord(start, stream_.handle) == CUDA_SUCCESS) {
    open_.start = start;
    open_.anchor = context.anchor;
    open_.event = {nanoseconds(Clock::now()),
                   0,
                   number,
                   header.opcode,
                   static_cast<uint16_t>(header.thread),
                   wire::TraceEvent::kOnDevice,
                   stream_.context->id,
                   *id};
  }
  if (current) executor_.make_current(current->id);
}

void DeviceTrace::after() {
  if (!open_.start) return;
  if (executor_.driver().cuEventRecord(open_.end, stream_.handle) != CUDA_SUCCESS) return;
  queues_[stream_.key].push_back(std::exchange(open_, {}));
  ++pending_;
}

bool DeviceTrace::finish(const Work& work, std::vector<wire::TraceEvent>* events) {
  const api::DriverTable& driver = executor_.driver();
  const CUresult result = driver.cuEventQuery(work.end);
  if (result == CUDA_ERROR_NOT_READY) return false;
  float begin_ms = 0, end_ms = 0;
  if (result == CUDA_SUCCESS &&
      driver.cuEventElapsedTime(&begin_ms, work.anchor->event, work.start) == CUDA_SUCCESS &&
      driver.cuEventElapsedTime(&end_ms, work.anchor->event, work.end) == CUDA_SUCCESS) {
    const auto at = [&](float ms) {
      return nanoseconds(work.anchor->time + std::chrono::duration_cast<Clock::duration>(
                                                 std::chrono::duration<double, std::milli>(ms)));
    };
    wire::TraceEvent event = work.event;
    // Where the anchor was seen late, the queueing still tells what it cannot have been before.
    event.begin_ns = std::max(event.begin_ns, at(begin_ms));
    event.end_ns = std::max(event.begin_ns, at(end_ms));
    events->push_back(event);
  }
  Context& context = contexts_[work.event.context];
  context.free_events.push_back(work.start);
  context.free_events.push_back(work.end);
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
