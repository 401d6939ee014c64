#include "server/executor/metering/stream_frees.h"

#include <algorithm>
#include <utility>

#include "server/executor/objects/context_guard.h"
#include "server/executor/streams/capture.h"

namespace rcuda::server {
namespace {

void give_all(Bookings& bookings, const std::vector<Bookings::Booking>& frees) {
  for (const Bookings::Booking& booking : frees) bookings.give(booking);
}

}  // namespace

// Returns null if the driver does not report the stream's context. (It may differ from the current
// context.)
StreamFrees::Line* StreamFrees::line_of(CUstream stream) {
  CUcontext context = nullptr;
  if (driver_.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS) return nullptr;
  const auto known = std::find_if(lines_.begin(), lines_.end(), [&](const Line& line) {
    return line.context == context && line.stream == stream && !line.ended;
  });
  if (known != lines_.end()) return &*known;
  lines_.push_back({.context = context, .stream = stream});
  return &lines_.back();
}

// Records an event for the frees that have none. Fails in a capture, where the event would become
// part of the graph.
bool StreamFrees::record(Line& line) {
  const ContextGuard inside(driver_, line.context);
  Recorded made;
  if (!inside.ok() || refuse_capture(driver_, line.stream) != CUDA_SUCCESS ||
      driver_.cuEventCreate(&made.event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
    return false;
  }
  if (driver_.cuEventRecord(made.event, line.stream) != CUDA_SUCCESS) {
    driver_.cuEventDestroy_v2(made.event);
    return false;
  }
  made.frees = std::exchange(line.later, {});
  line.recorded.push_back(std::move(made));
  return true;
}

bool StreamFrees::add(const Bookings::Booking& booking, CUstream stream, Bookings& bookings) {
  Line* const line = line_of(stream);
  if (!line) return false;
  if (line->recorded.size() >= kMostEvents) refresh(*line, bookings);
  line->later.push_back(booking);
  if (line->recorded.size() >= kMostEvents || record(*line)) return true;
  line->later.pop_back();
  return false;
}

bool StreamFrees::is_idle(const Line& line) const {
  const ContextGuard inside(driver_, line.context);
  return inside.ok() && query_stream(driver_, line.stream) == CUDA_SUCCESS;
}

void StreamFrees::refresh(Line& line, Bookings& bookings) {
  const size_t before = line.recorded.size();
  while (!line.recorded.empty() &&
         driver_.cuEventQuery(line.recorded.front().event) == CUDA_SUCCESS) {
    driver_.cuEventDestroy_v2(line.recorded.front().event);
    give_all(bookings, line.recorded.front().frees);
    line.recorded.pop_front();
  }
  if (line.later.empty() || line.ended || (before && line.recorded.size() == before)) return;
  if (is_idle(line)) {
    give_all(bookings, std::exchange(line.later, {}));
  } else {
    (void)record(line);
  }
}

void StreamFrees::refresh(Bookings& bookings) {
  for (Line& line : lines_) refresh(line, bookings);
  std::erase_if(lines_,
                [](const Line& line) { return line.recorded.empty() && line.later.empty(); });
}

void StreamFrees::end_stream(CUstream stream) {
  for (Line& line : lines_) {
    if (line.stream != stream || line.ended) continue;
    // If the event cannot be recorded, these frees count until the context ends.
    if (!line.later.empty()) (void)record(line);
    line.ended = true;
  }
}

void StreamFrees::give_all_of(CUcontext context, Bookings& bookings) {
  std::erase_if(lines_, [&](const Line& line) {
    if (line.context != context) return false;
    for (const Recorded& recorded : line.recorded) give_all(bookings, recorded.frees);
    give_all(bookings, line.later);
    return true;
  });
}

}  // namespace rcuda::server
