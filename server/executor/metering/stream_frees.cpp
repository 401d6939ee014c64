#include "server/executor/metering/stream_frees.h"

#include <algorithm>
#include <utility>

#include "server/executor/objects/context_guard.h"

namespace rcuda::server {
namespace {

// A query or a record during a capture would invalidate it, or become part of it.
bool captures_nothing(const api::DriverTable& driver, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
         status == CU_STREAM_CAPTURE_STATUS_NONE;
}

void give_all(Bookings& bookings, const std::vector<Bookings::Booking>& frees) {
  for (const Bookings::Booking& booking : frees) bookings.give(booking);
}

}  // namespace

// Null: the driver does not tell the stream's context, which need not be the current one.
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

bool StreamFrees::mark(Line& line) {
  const ContextGuard inside(driver_, line.context);
  Mark made;
  if (!inside.ok() || !captures_nothing(driver_, line.stream) ||
      driver_.cuEventCreate(&made.reached, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
    return false;
  }
  if (driver_.cuEventRecord(made.reached, line.stream) != CUDA_SUCCESS) {
    driver_.cuEventDestroy_v2(made.reached);
    return false;
  }
  made.frees = std::exchange(line.unmarked, {});
  line.marks.push_back(std::move(made));
  return true;
}

bool StreamFrees::is_idle(const Line& line) const {
  const ContextGuard inside(driver_, line.context);
  return inside.ok() && captures_nothing(driver_, line.stream) &&
         driver_.cuStreamQuery(line.stream) == CUDA_SUCCESS;
}

bool StreamFrees::add(const Bookings::Booking& booking, CUstream stream, Bookings& bookings) {
  Line* const line = line_of(stream);
  if (!line) return false;
  if (line->marks.size() >= kMostMarks) refresh(*line, bookings);
  line->unmarked.push_back(booking);
  if (line->marks.size() >= kMostMarks || mark(*line)) return true;
  line->unmarked.pop_back();
  return false;
}

void StreamFrees::refresh(Line& line, Bookings& bookings) {
  const size_t before = line.marks.size();
  while (!line.marks.empty() && driver_.cuEventQuery(line.marks.front().reached) == CUDA_SUCCESS) {
    driver_.cuEventDestroy_v2(line.marks.front().reached);
    give_all(bookings, line.marks.front().frees);
    line.marks.pop_front();
  }
  if (line.unmarked.empty() || line.ended || (before && line.marks.size() == before)) return;
  if (is_idle(line)) {
    give_all(bookings, std::exchange(line.unmarked, {}));
  } else {
    (void)mark(line);
  }
}

void StreamFrees::refresh(Bookings& bookings) {
  for (Line& line : lines_) refresh(line, bookings);
  std::erase_if(lines_,
                [](const Line& line) { return line.marks.empty() && line.unmarked.empty(); });
}

void StreamFrees::end_stream(CUstream stream) {
  for (Line& line : lines_) {
    if (line.stream != stream || line.ended) continue;
    // Without a mark these count until the context ends.
    if (!line.unmarked.empty()) (void)mark(line);
    line.ended = true;
  }
}

void StreamFrees::give_all_of(CUcontext context, Bookings& bookings) {
  std::erase_if(lines_, [&](const Line& line) {
    if (line.context != context) return false;
    for (const Mark& mark : line.marks) give_all(bookings, mark.frees);
    give_all(bookings, line.unmarked);
    return true;
  });
}

}  // namespace rcuda::server
