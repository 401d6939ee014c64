#include "server/executor/completions.h"

#include <algorithm>
#include <utility>

#include "common/cuda/errors.h"
#include "server/executor/executor.h"

namespace rcuda::server {

Completions::~Completions() = default;

CUresult Completions::take_event(ContextState& context, CUevent* event) {
  if (!context.free_events.empty()) {
    *event = context.free_events.back();
    context.free_events.pop_back();
    return CUDA_SUCCESS;
  }
  ContextState* const before = executor_.current_context();
  if (CUresult result = executor_.make_current(context.id); result != CUDA_SUCCESS) return result;
  const CUresult result = executor_.driver().cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
  if (before) executor_.make_current(before->id);
  return result;
}

void Completions::enqueue(const StreamRef& stream, Pending pending) {
  CUresult result = take_event(*stream.context, &pending.event);
  if (result == CUDA_SUCCESS) {
    result = executor_.driver().cuEventRecord(pending.event, stream.handle);
  }
  pending.context = stream.context;
  pending.stream = stream.id;
  pending.use = stream.object->last_use;
  if (result != CUDA_SUCCESS) {
    // Nothing can be pending behind an event that was not recorded; earlier ones stay in order
    // because they are asked first.
    poll();
    finish(pending, stream.key, result);
    return;
  }
  std::unique_ptr<Queue>& queue = queues_[stream.key];
  if (!queue) {
    queue = std::make_unique<Queue>();
    queue->key = stream.key;
    queue->context = stream.context;
  }
  if (!std::exchange(queue->active, true)) active_.push_back(queue.get());
  queue->pending.push_back(std::move(pending));
}

void Completions::add(const StreamRef& stream, WordSignal signal, bool prints) {
  Pending pending;
  pending.signal = signal;
  pending.prints = prints;
  enqueue(stream, std::move(pending));
}

void Completions::add(const StreamRef& stream, WhenDone when_done) {
  Pending pending;
  pending.when_done = std::move(when_done);
  enqueue(stream, std::move(pending));
}

void Completions::finish(Pending& pending, uint64_t key, CUresult result) {
  if (result == CUDA_SUCCESS) {
    Object* stream = nullptr;
    if (pending.stream != 0) {
      stream = executor_.objects(wire::Kind::kStream).find(pending.stream);
      if (stream && stream->key != key) stream = nullptr;
    } else if (key == (kLegacyKey | pending.context->id)) {
      stream = &pending.context->legacy_stream;
    }
    if (stream) stream->done_use = std::max(stream->done_use, pending.use);
    if (pool_frees_.any()) {
      pool_frees_.reached(*pending.context, pending.event, stream != nullptr,
                          stream ? static_cast<CUstream>(stream->handle) : nullptr);
    }
    if (pending.event) pending.context->free_events.push_back(pending.event);
  } else {
    if (pending.event) executor_.driver().cuEventDestroy_v2(pending.event);
    if (cuda::is_sticky(result)) executor_.latch(result);
  }
  if (pending.prints) executor_.flush_output(*pending.context);
  if (pending.when_done) {
    executor_.note_work();
    pending.when_done(result);
  } else {
    executor_.signal(pending.signal, result,
                     pending.prints ? transport::Wake::kNow : transport::Wake::kYes);
  }
}

void Completions::watch(wire::ObjectId id, WordSignal signal, bool waits) {
  Object* object = executor_.objects(wire::Kind::kEvent).find(id);
  ContextState* context = object ? executor_.find_context(object->context) : nullptr;
  if (!context) {
    executor_.signal(signal, CUDA_ERROR_INVALID_HANDLE);
    return;
  }
  if (waits) {
    object->watched = true;
  } else if (const auto known =
                 std::find_if(watches_.begin(), watches_.end(),
                              [id](const Watch& watch) { return watch.id == id && !watch.waits; });
             known != watches_.end()) {
    known->signal = signal;
    return;
  }
  watches_.push_back({id, waits, static_cast<CUevent>(object->handle), nullptr, context, signal});
}

void Completions::move_watches(wire::ObjectId id) {
  // Those that are done need no private event.
  poll();
  for (size_t i = 0; i < watches_.size();) {
    if (watches_[i].id == id && watches_[i].waits) {
      move(watches_[i]);
      if (watches_[i].id == id) {  // could not be moved, and has been answered
        watches_.erase(watches_.begin() + static_cast<long>(i));
        continue;
      }
    }
    ++i;
  }
  if (Object* object = executor_.objects(wire::Kind::kEvent).find(id)) object->watched = false;
}

void Completions::forget_event(CUevent event) {
  std::erase_if(watches_, [event](const Watch& watch) { return watch.event == event; });
}

void Completions::move(Watch& watch) {
  const api::DriverTable& driver = executor_.driver();
  ContextState& context = *watch.context;
  ContextState* const before = executor_.current_context();
  CUresult result = executor_.make_current(context.id);
  CUstream stream = nullptr;
  if (result == CUDA_SUCCESS) {
    if (!context.free_streams.empty()) {
      stream = context.free_streams.back();
      context.free_streams.pop_back();
    } else {
      result = driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    }
  }
  CUevent event = nullptr;
  if (result == CUDA_SUCCESS) result = take_event(context, &event);
  if (result == CUDA_SUCCESS) result = driver.cuStreamWaitEvent(stream, watch.event, 0);
  if (result == CUDA_SUCCESS) result = driver.cuEventRecord(event, stream);
  if (before) executor_.make_current(before->id);
  if (result != CUDA_SUCCESS) {
    if (event) context.free_events.push_back(event);
    if (stream) context.free_streams.push_back(stream);
    finish(watch, result);
    return;
  }
  watch.id = 0;
  watch.event = event;
  watch.stream = stream;
}

void Completions::finish(Watch& watch, CUresult result) {
  if (result == CUDA_SUCCESS && pool_frees_.any()) {
    pool_frees_.reached(*watch.context, watch.event, false, nullptr);
  }
  if (watch.stream) {
    watch.context->free_streams.push_back(watch.stream);
    watch.context->free_events.push_back(watch.event);
  }
  executor_.flush_output(*watch.context);
  executor_.signal(watch.signal, result);
}

bool Completions::poll() {
  const api::DriverTable& driver = executor_.driver();
  bool any = false;
  for (size_t i = 0; i < active_.size();) {
    Queue& queue = *active_[i];
    while (!queue.pending.empty()) {
      const CUresult result = driver.cuEventQuery(queue.pending.front().event);
      if (result == CUDA_ERROR_NOT_READY) break;
      Pending pending = std::move(queue.pending.front());
      queue.pending.pop_front();
      finish(pending, queue.key, result);
      any = true;
    }
    if (queue.pending.empty()) {
      queue.active = false;
      if (queue.forgotten) queues_.erase(queue.key);
      active_[i] = active_.back();
      active_.pop_back();
    } else {
      ++i;
    }
  }
  for (size_t i = 0; i < watches_.size();) {
    const CUresult result = driver.cuEventQuery(watches_[i].event);
    if (result == CUDA_ERROR_NOT_READY) {
      ++i;
      continue;
    }
    Watch watch = watches_[i];
    watches_.erase(watches_.begin() + static_cast<long>(i));
    finish(watch, result);
    any = true;
  }
  return any;
}

size_t Completions::waiting_streams() const {
  return static_cast<size_t>(
      std::count_if(watches_.begin(), watches_.end(),
                    [](const Watch& watch) { return watch.stream != nullptr; }));
}

void Completions::forget_stream(uint64_t key) {
  const auto found = queues_.find(key);
  if (found == queues_.end()) return;
  if (found->second->active) {
    found->second->forgotten = true;
  } else {
    queues_.erase(found);
  }
}

void Completions::drop_context(ContextState& context, CUresult error) {
  poll();
  for (size_t i = 0; i < active_.size();) {
    Queue& queue = *active_[i];
    if (queue.context != &context) {
      ++i;
      continue;
    }
    while (!queue.pending.empty()) {
      Pending pending = std::move(queue.pending.front());
      queue.pending.pop_front();
      finish(pending, queue.key, error);
    }
    active_[i] = active_.back();
    active_.pop_back();
  }
  std::erase_if(queues_, [&](const auto& item) { return item.second->context == &context; });
  for (size_t i = 0; i < watches_.size();) {
    if (watches_[i].context != &context) {
      ++i;
      continue;
    }
    Watch watch = watches_[i];
    watches_.erase(watches_.begin() + static_cast<long>(i));
    finish(watch, error);
  }
}

}  // namespace rcuda::server
