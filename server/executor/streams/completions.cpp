#include "server/executor/streams/completions.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "common/cuda/errors.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::server {

Completions::Completions(const api::DriverTable& driver, SessionObjects& objects, WorkCount& work,
                         Answers& answers, DeviceOutput& output, PoolFrees& pool_frees,
                         const Marks& marks)
    : driver_(driver),
      objects_(objects),
      work_(work),
      answers_(answers),
      output_(output),
      pool_frees_(pool_frees),
      marks_(reinterpret_cast<uint64_t*>(marks.memory.data()),
             driver.cuStreamWriteValue64_v2 ? marks.memory.size() / sizeof(uint64_t) : 0),
      most_streams_(marks.most_streams) {}

CUresult Completions::take_event(ContextState& context, CUevent* event) {
  if (!context.free_events.empty()) {
    *event = context.free_events.back();
    context.free_events.pop_back();
    return CUDA_SUCCESS;
  }
  ContextState* const before = objects_.current_context();
  RCUDA_RETURN_IF_CUDA_ERROR(objects_.make_current(context.id));
  const CUresult result = driver_.cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
  if (before) objects_.make_current(before->id);
  return result;
}

void Completions::enqueue(const SessionStream& stream, Pending pending) {
  CUresult result = take_event(*stream.context, &pending.event);
  if (result == CUDA_SUCCESS) {
    result = driver_.cuEventRecord(pending.event, stream.handle);
  }
  pending.number = ++last_number_;
  pending.context = stream.context;
  pending.stream = stream.id;
  pending.use = stream.object->last_use;
  if (result != CUDA_SUCCESS) {
    // The event was not recorded, so this completion ends now. To keep the order, poll() first ends
    // the earlier completions that are done.
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

void Completions::add(const SessionStream& stream, WordSignal signal, bool prints) {
  Pending pending;
  pending.signal = signal;
  pending.prints = prints;
  enqueue(stream, std::move(pending));
}

void Completions::await(const SessionStream& stream, WordSignal signal) {
  Pending pending;
  pending.signal = signal;
  pending.prints = true;
  pending.marked = queue_mark(stream, signal);
  enqueue(stream, std::move(pending));
}

bool Completions::queue_mark(const SessionStream& stream, WordSignal signal) {
  constexpr size_t kManyWaits = 2;
  const bool is_legacy = stream.handle == nullptr;
  if (signal.word >= marks_.size() || signal.sequence == 0 || is_legacy || output_.may_print() ||
      pool_frees_.any()) {
    return false;
  }
  const size_t streams = objects_.of(wire::Kind::kStream).size() + waiting_streams();
  if (most_streams_ != 0 && streams >= most_streams_) return false;
  const auto queue = queues_.find(stream.key);
  if (queue != queues_.end() && queue->second->pending.size() >= kManyWaits) return false;
  // Page-locked memory has the same address in all contexts.
  const auto address = reinterpret_cast<CUdeviceptr>(&marks_[signal.word]);
  return driver_.cuStreamWriteValue64_v2(stream.handle, address, signal.sequence, 0) ==
         CUDA_SUCCESS;
}

// A client that maps the GPU-written words can also write them. It thereby misleads only itself,
// except if memory was freed in stream order: a false word would release the booking of this memory
// too early. So then only the driver's event counts.
bool Completions::is_marked(const Pending& pending) const {
  return pending.marked && !pool_frees_.any() &&
         std::atomic_ref(marks_[pending.signal.word]).load(std::memory_order_acquire) ==
             pending.signal.sequence;
}

void Completions::add(const SessionStream& stream, WhenDone when_done) {
  Pending pending;
  pending.when_done = std::move(when_done);
  enqueue(stream, std::move(pending));
}

void Completions::finish(Pending& pending, uint64_t key, CUresult result) {
  if (result == CUDA_SUCCESS) {
    Object* stream = nullptr;
    if (pending.stream != 0) {
      stream = objects_.of(wire::Kind::kStream).find(pending.stream);
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
    if (pending.event) driver_.cuEventDestroy_v2(pending.event);
    if (cuda::is_sticky(result)) answers_.latch(result);
  }
  if (pending.prints) output_.flush(*pending.context);
  if (pending.when_done) {
    work_.note();
    pending.when_done(result);
  } else {
    answers_.end_wait(pending.signal, result,
                      pending.prints ? transport::Wake::kNow : transport::Wake::kYes);
  }
}

void Completions::watch(wire::ObjectId id, WordSignal signal, wire::WatchFor purpose) {
  Object* object = objects_.of(wire::Kind::kEvent).find(id);
  ContextState* context = object ? objects_.find_context(object->context) : nullptr;
  if (!context) {
    answers_.signal(signal, CUDA_ERROR_INVALID_HANDLE);
    return;
  }
  const auto event = static_cast<CUevent>(object->handle);
  if (purpose == wire::WatchFor::kQuery) {
    return answers_.end_wait(signal, driver_.cuEventQuery(event));
  }
  const bool waits = purpose == wire::WatchFor::kWait;
  if (waits) {
    object->watched = true;
  } else if (const auto known =
                 std::find_if(watches_.begin(), watches_.end(),
                              [id](const Watch& watch) { return watch.id == id && !watch.waits; });
             known != watches_.end()) {
    known->signal = signal;
    return;
  }
  watches_.push_back({id, waits, event, nullptr, context, signal});
}

CUresult Completions::event_for_command(wire::ObjectId id, CUevent* event) {
  *event = nullptr;
  if (id == 0) return CUDA_SUCCESS;
  const Object* object = objects_.of(wire::Kind::kEvent).find(id);
  if (!object) return CUDA_ERROR_INVALID_HANDLE;
  *event = static_cast<CUevent>(object->handle);
  if (object->watched) move_watches(id);
  return CUDA_SUCCESS;
}

void Completions::move_watches(wire::ObjectId id) {
  // Watches that are done need no private event.
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
  if (Object* object = objects_.of(wire::Kind::kEvent).find(id)) object->watched = false;
}

void Completions::forget_event(CUevent event) {
  std::erase_if(watches_, [event](const Watch& watch) { return watch.event == event; });
}

void Completions::move(Watch& watch) {
  ContextState& context = *watch.context;
  ContextState* const before = objects_.current_context();
  CUresult result = objects_.make_current(context.id);
  CUstream stream = nullptr;
  if (result == CUDA_SUCCESS) {
    if (!context.free_streams.empty()) {
      stream = context.free_streams.back();
      context.free_streams.pop_back();
    } else {
      result = driver_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    }
  }
  CUevent event = nullptr;
  if (result == CUDA_SUCCESS) result = take_event(context, &event);
  if (result == CUDA_SUCCESS) result = driver_.cuStreamWaitEvent(stream, watch.event, 0);
  if (result == CUDA_SUCCESS) result = driver_.cuEventRecord(event, stream);
  if (before) objects_.make_current(before->id);
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

void Completions::finish(Watch& watch, CUresult result, transport::Wake wake) {
  if (result == CUDA_SUCCESS && pool_frees_.any()) {
    pool_frees_.reached(*watch.context, watch.event, false, nullptr);
  }
  if (watch.stream) {
    watch.context->free_streams.push_back(watch.stream);
    watch.context->free_events.push_back(watch.event);
  }
  output_.flush(*watch.context);
  answers_.end_wait(watch.signal, result, wake);
}

// Finds out how far a stream has got. The last event is queried first: if it is reached, all are.
// Otherwise this query costs little: it takes 0.15 us for an event that is not reached, and 1.5 us
// for a reached event (H100). An event with a GPU-written word is queried only in every
// kLooksPerQuery-th look. In a failed stream the GPU does not write the word; the query detects
// the failure.
CUresult Completions::look(Queue& queue, uint64_t* reached) {
  constexpr uint32_t kLooksPerQuery = 16;
  const Pending& first = queue.pending.front();
  const Pending& last = queue.pending.back();
  *reached = last.number;
  if (is_marked(last)) return CUDA_SUCCESS;
  const bool asks = ++queue.looks % kLooksPerQuery == 0;
  const auto ask = [&](const Pending& pending) {
    return pending.marked && !asks && !pool_frees_.any() ? CUDA_ERROR_NOT_READY
                                                         : driver_.cuEventQuery(pending.event);
  };
  const CUresult result = ask(last);
  if (result != CUDA_ERROR_NOT_READY || &first == &last) return result;
  *reached = first.number;
  return is_marked(first) ? CUDA_SUCCESS : ask(first);
}

bool Completions::finish_reached(Queue& queue) {
  bool any = false;
  while (!queue.pending.empty()) {
    uint64_t reached;
    const CUresult result = look(queue, &reached);
    if (result == CUDA_ERROR_NOT_READY) break;
    // Actions that finish() runs may end and add completions.
    while (!queue.pending.empty() && queue.pending.front().number <= reached) {
      Pending pending = std::move(queue.pending.front());
      queue.pending.pop_front();
      finish(pending, queue.key, result);
    }
    any = true;
  }
  return any;
}

// Ends the watches for which `ask` returns a result. Returns whether there were any.
template <typename Ask>
bool Completions::end_watches(const Ask& ask, transport::Wake wake) {
  bool any = false;
  for (size_t i = 0; i < watches_.size();) {
    const CUresult result = ask(watches_[i]);
    if (result == CUDA_ERROR_NOT_READY) {
      ++i;
      continue;
    }
    Watch watch = watches_[i];
    watches_.erase(watches_.begin() + static_cast<long>(i));
    finish(watch, result, wake);
    any = true;
  }
  return any;
}

void Completions::poll_watches() {
  int left = 4;
  const auto ask = [&](const Watch& watch) {
    return watch.waits && left-- > 0 ? driver_.cuEventQuery(watch.event) : CUDA_ERROR_NOT_READY;
  };
  if (!watches_.empty()) (void)end_watches(ask, transport::Wake::kHandOver);
}

bool Completions::poll() {
  bool any = false;
  for (size_t i = 0; i < active_.size();) {
    Queue& queue = *active_[i];
    any |= finish_reached(queue);
    if (queue.pending.empty()) {
      queue.active = false;
      if (queue.forgotten) queues_.erase(queue.key);
      active_[i] = active_.back();
      active_.pop_back();
    } else {
      ++i;
    }
  }
  any |= end_watches([this](const Watch& watch) { return driver_.cuEventQuery(watch.event); });
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
  end_watches(
      [&](const Watch& watch) { return watch.context == &context ? error : CUDA_ERROR_NOT_READY; });
}

}  // namespace rcuda::server
