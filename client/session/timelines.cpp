#include "client/session/timelines.h"

#include <algorithm>

namespace rcuda::client {
namespace {

using WithLegacy = Timeline::WithLegacy;

size_t index_of(Timelines::Scope scope) { return static_cast<size_t>(scope); }

// Whether a wait of this scope covers the timeline's stream; kMaybe if that is not known.
WithLegacy covers(Timelines::Scope scope, const Timeline& timeline) {
  const bool all = scope == Timelines::Scope::kContext || timeline.stream() == 0;
  return all ? WithLegacy::kYes : timeline.with_legacy();
}

bool has_ended(const std::shared_ptr<Timeline>& timeline) {
  return timeline->is_closed() && timeline->has_reached(timeline->sent());
}

}  // namespace

std::shared_ptr<Timeline> Timelines::make(TimelineHost& host, wire::ObjectId context,
                                          wire::ObjectId stream) {
  auto timeline = std::make_shared<Timeline>(host, context, stream);
  MutexLock lock(mutex_);
  contexts_[context].timelines.push_back(timeline);
  return timeline;
}

void Timelines::end_stream(const std::shared_ptr<Timeline>& timeline) {
  timeline->close();
  MutexLock lock(mutex_);
  const auto found = contexts_.find(timeline->context());
  if (found == contexts_.end()) return;
  erase_ended(found->second);
}

// After a query, a destroyed stream may be known to be done although its kernels' output is not
// printed yet. Its timeline is erased, and only this timeline records that the output is missing.
// So the erased stream counts as unplaced work, and the next wait is sent to the worker.
void Timelines::erase_ended(OfContext& context) {
  std::erase_if(context.timelines, [this](const std::shared_ptr<Timeline>& timeline) {
    if (!has_ended(timeline)) return false;
    if (!timeline->is_awaited()) count_unplaced();
    return true;
  });
}

void Timelines::end_context(wire::ObjectId context) {
  // Declared before the lock, so destroyed after it: the destructor of a timeline releases the
  // timeline's word.
  OfContext ended;
  MutexLock lock(mutex_);
  const auto found = contexts_.find(context);
  if (found == contexts_.end()) return;
  ended = std::move(found->second);
  contexts_.erase(found);
}

Timelines::Positions Timelines::now(Scope scope, wire::ObjectId context) {
  Positions positions{context, scope, unplaced_.load(std::memory_order_acquire), {}};
  MutexLock lock(mutex_);
  const auto found = contexts_.find(context);
  if (found == contexts_.end()) return positions;
  positions.timelines.reserve(found->second.timelines.size());
  for (const auto& timeline : found->second.timelines) {
    if (covers(scope, *timeline) == WithLegacy::kYes) {
      positions.timelines.emplace_back(timeline, timeline->sent());
    }
  }
  return positions;
}

void Timelines::done(const Positions& positions) {
  for (const auto& [timeline, position] : positions.timelines) timeline->advance(position);
  note(positions, {&OfContext::unplaced_reached});
}

void Timelines::waited(const Positions& positions) {
  add_wait();
  for (const auto& [timeline, position] : positions.timelines) timeline->waited(position);
  note(positions, {&OfContext::unplaced_reached, &OfContext::unplaced_awaited});
}

void Timelines::note(const Positions& positions,
                     std::initializer_list<ByScope OfContext::*> counts) {
  MutexLock lock(mutex_);
  const auto found = contexts_.find(positions.context);
  if (found == contexts_.end()) return;
  OfContext& context = found->second;
  // A wait for the context also covers its default stream.
  for (const auto count : counts) {
    ByScope& unplaced = context.*count;
    for (size_t i = index_of(positions.scope); i < unplaced.size(); ++i) {
      unplaced[i] = std::max(unplaced[i], positions.unplaced);
    }
  }
  erase_ended(context);
}

bool Timelines::is_quiet(Scope scope, wire::ObjectId context) {
  return is_over(scope, context, &Timeline::is_level, &OfContext::unplaced_reached);
}

bool Timelines::is_awaited(Scope scope, wire::ObjectId context) {
  return is_over(scope, context, &Timeline::is_awaited, &OfContext::unplaced_awaited);
}

bool Timelines::is_over(Scope scope, wire::ObjectId context, bool (Timeline::*over)() const,
                        ByScope OfContext::*unplaced) {
  MutexLock lock(mutex_);
  const auto found = contexts_.find(context);
  if (found == contexts_.end()) return false;
  if ((found->second.*unplaced)[index_of(scope)] != unplaced_.load(std::memory_order_acquire)) {
    return false;
  }
  return std::all_of(found->second.timelines.begin(), found->second.timelines.end(),
                     [&](const auto& timeline) {
                       return covers(scope, *timeline) == WithLegacy::kNo || (*timeline.*over)();
                     });
}

}  // namespace rcuda::client
