#include "client/session/progress.h"

#include <mutex>

namespace rcuda::client {
namespace {

// Watching is rare next to polling: one lock for all objects.
std::mutex watch_mutex;
std::atomic<uint64_t> graph_launches{0};

template <typename Body>
uint64_t watch(Session& session, Object& object, wire::ObjectId context, wire::Custom opcode,
               uint64_t state, uint64_t learned, Body body) {
  std::lock_guard lock(watch_mutex);
  const uint32_t known = object.word.load(std::memory_order_relaxed);
  Session::Word word;
  if (known == 0) {
    word = session.acquire_word();
  } else {
    word = {known - 1, object.watched.load(std::memory_order_relaxed)};
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

}  // namespace

uint64_t watch_stream(Session& session, Object& object, wire::ObjectId context,
                      wire::ObjectId stream, uint64_t uses, uint64_t learned) {
  return watch(session, object, context, wire::Custom::kSignal, uses, learned,
               wire::SignalBody{stream, 0, 0});
}

uint64_t event_state(const Object& event) {
  return event.uses.load(std::memory_order_acquire) +
         graph_launches.load(std::memory_order_acquire);
}

void graph_launched() { graph_launches.fetch_add(1, std::memory_order_acq_rel); }

uint64_t watch_event(Session& session, Object& event, uint64_t state, uint64_t learned) {
  return watch(session, event, event.context, wire::Custom::kWatchEvent, state, learned,
               wire::WatchEventBody{event.id, 0, 0});
}

void note_finished(Object& object, uint64_t state) {
  object.finished.store(state, std::memory_order_release);
}

Progress progress_of(const Session& session, const Object& object, uint64_t state,
                     CUresult* result) {
  if (object.finished.load(std::memory_order_acquire) == state) return Progress::kDone;
  if (object.sequence.load(std::memory_order_acquire) != state) return Progress::kUnknown;
  const uint32_t word = object.word.load(std::memory_order_relaxed);
  if (word == 0) return Progress::kUnknown;
  // Before the word is looked at: what is learned afterwards is none of this caller's.
  const bool stale = object.learned.load(std::memory_order_relaxed) != session.learned();
  if (session.word_reached(word - 1, object.watched.load(std::memory_order_relaxed), result)) {
    return Progress::kDone;
  }
  return stale ? Progress::kUnknown : Progress::kPending;
}

}  // namespace rcuda::client
