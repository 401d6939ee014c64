#include "client/session/progress.h"

#include <mutex>
#include <optional>

namespace rcuda::client {
namespace {

std::atomic<uint64_t> graph_launches{0};

// A stream works in order: while earlier work of it is unfinished, what is behind it is as well. An
// event may be recorded again in another stream.
enum class Order { kOfStream, kNone };

// Whether the worker has still to answer what stands for `state`, too.
bool is_under_way(const Session& session, const ProgressState& object, Order order,
                  uint64_t state) {
  const uint32_t word = object.word.load(std::memory_order_relaxed);
  if (word == 0) return false;
  if (order == Order::kNone && object.sequence.load(std::memory_order_relaxed) != state) {
    return false;
  }
  CUresult ignored;
  return !session.word_reached(word - 1, object.watched.load(std::memory_order_relaxed), &ignored);
}

template <typename Body>
uint64_t watch(Session& session, ProgressState& object, Order order, wire::ObjectId context,
               wire::Custom opcode, uint64_t state, uint64_t learned, Body body) {
  std::lock_guard lock(session.watch_mutex());
  if (learned != kNotAsked && is_under_way(session, object, order, state)) {
    object.learned.store(learned, std::memory_order_release);
    return object.watched.load(std::memory_order_relaxed);
  }
  Session::Word word;
  if (const uint32_t known = object.word.load(std::memory_order_relaxed); known != 0) {
    word = {known - 1, object.watched.load(std::memory_order_relaxed)};
  } else if (const std::optional<Session::Word> spare = session.acquire_spare_word()) {
    word = *spare;
  } else {
    return 0;
  }
  body.word = word.index;
  body.sequence = ++word.sequence;
  (void)session.post_only(context, static_cast<uint16_t>(opcode),
                          std::as_bytes(std::span(&body, 1)));
  object.watched.store(word.sequence, std::memory_order_relaxed);
  object.word.store(word.index + 1, std::memory_order_relaxed);
  object.learned.store(learned, std::memory_order_relaxed);
  object.sequence.store(state, std::memory_order_release);  // pairs with progress_of
  return word.sequence;
}

// Its word has said all that it was asked for.
void give_back_word(Session& session, ProgressState& object) {
  std::lock_guard lock(session.watch_mutex());
  uint32_t word = object.word.load(std::memory_order_relaxed);
  const uint64_t watched = object.watched.load(std::memory_order_relaxed);
  CUresult ignored;
  if (word == 0 || !session.word_reached(word - 1, watched, &ignored)) return;
  // Whoever destroys the object at the same time gives its word back as well.
  if (object.word.compare_exchange_strong(word, 0)) session.release_word({word - 1, watched});
}

// An object's word is another's when the object is gone.
void release_word(Session* session, ProgressState& progress) {
  const uint32_t word = progress.word.exchange(0);
  if (word != 0) session->release_word({word - 1, progress.watched});
}

Progress progress_of(Session& session, ProgressState& object, Order order, uint64_t state,
                     CUresult* result) {
  if (object.finished.load(std::memory_order_acquire) == state) return Progress::kDone;
  const bool asked = object.sequence.load(std::memory_order_acquire) == state;
  if (!asked && order == Order::kNone) return Progress::kUnknown;
  const uint32_t word = object.word.load(std::memory_order_relaxed);
  if (word == 0) return Progress::kUnknown;
  // Before the word is looked at: what is learned afterwards is none of this caller's.
  const bool stale = object.learned.load(std::memory_order_acquire) != session.learned();
  if (session.word_reached(word - 1, object.watched.load(std::memory_order_relaxed), result)) {
    // The answer may be another object's, which has been given the word since.
    if (!asked || object.word.load(std::memory_order_relaxed) != word) return Progress::kUnknown;
    if (*result != CUDA_SUCCESS) return Progress::kDone;
    note_finished(session, object, state);
    if (order == Order::kNone) give_back_word(session, object);
    return Progress::kDone;
  }
  return stale ? Progress::kUnknown : Progress::kPending;
}

}  // namespace

WorkQueue::~WorkQueue() { release_word(session, progress); }

Event::~Event() { release_word(session, progress); }

uint64_t watch_stream(Session& session, WorkQueue& queue, wire::ObjectId context,
                      wire::ObjectId stream, uint64_t uses, uint64_t learned) {
  return watch(session, queue.progress, Order::kOfStream, context, wire::Custom::kSignal, uses,
               learned, wire::SignalBody{stream, 0, 0});
}

uint64_t event_state(const Event& event) {
  return event.progress.uses.load(std::memory_order_acquire) +
         graph_launches.load(std::memory_order_acquire);
}

void graph_launched() { graph_launches.fetch_add(1, std::memory_order_acq_rel); }

void watch_event(Session& session, Event& event, uint64_t state, uint64_t learned) {
  watch(session, event.progress, Order::kNone, event.context, wire::Custom::kWatchEvent, state,
        learned, wire::WatchEventBody{event.id, 0, 0, 0, 0});
}

CUresult await_event(Session& session, const Event& event) {
  // A word of its own: the event's goes on with what is recorded later, perhaps elsewhere.
  Session::Word word = session.acquire_word();
  const wire::WatchEventBody body{event.id, word.index, ++word.sequence, 1, 0};
  (void)session.post_only(event.context, static_cast<uint16_t>(wire::Custom::kWatchEvent),
                          std::as_bytes(std::span(&body, 1)), {}, transport::Wake::kNow);
  const CUresult result = session.wait_word(word.index, word.sequence);
  session.release_word(word);
  return result;
}

void note_finished(Session& session, ProgressState& progress, uint64_t state) {
  session.learn();
  progress.finished.store(state, std::memory_order_release);
}

Progress progress_of(Session& session, WorkQueue& queue, uint64_t state, CUresult* result) {
  return progress_of(session, queue.progress, Order::kOfStream, state, result);
}

Progress progress_of(Session& session, Event& event, uint64_t state, CUresult* result) {
  return progress_of(session, event.progress, Order::kNone, state, result);
}

}  // namespace rcuda::client
