#include "client/session/pace.h"

#include <deque>
#include <mutex>
#include <utility>

#include "client/session/objects.h"
#include "client/session/progress.h"
#include "client/session/session.h"

namespace rcuda::client {

struct Pace {
  struct Mark {
    uint32_t queued;    // commands in front of it
    uint64_t sequence;  // of the stream's word when it is reached
  };
  std::deque<Mark> marks;  // not known to be reached, oldest first
};

namespace {

// The rest of the thousand is for the marks, and for what the worker queues of itself.
constexpr uint32_t kMost = 1004;
constexpr uint32_t kBetweenMarks = 251;

std::mutex mutex;  // of what is behind every Object::pace, and of `done`: seldom looked at

bool is_before(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; }
uint32_t later(uint32_t a, uint32_t b) { return is_before(a, b) ? b : a; }

// The sequence to wait for before a command may be queued behind `queued` others; 0: it may.
uint64_t look(Session& session, Object& object, wire::ObjectId stream, uint32_t queued) {
  std::lock_guard lock(mutex);
  if (!object.home) {
    object.home =
        session.adopted(wire::Kind::kContext, object.context, object.context, object.device);
  }
  // What other threads queue while somebody waits for the context counts as waited for.
  if (const uint32_t waits = object.home->waits.load(std::memory_order_acquire);
      object.seen_waits.exchange(waits, std::memory_order_relaxed) != waits) {
    object.done = queued;
  }
  uint32_t marked = object.done;
  if (object.pace) {
    auto& marks = object.pace->marks;
    const auto reached = [&](const Pace::Mark& mark) {
      CUresult ignored;
      return session.word_reached(object.word.load(std::memory_order_relaxed) - 1, mark.sequence,
                                  &ignored);
    };
    for (; !marks.empty() && reached(marks.front()); marks.pop_front()) {
      object.done = later(object.done, marks.front().queued);
    }
    while (!marks.empty() && !is_before(object.done, marks.front().queued)) marks.pop_front();
    marked = marks.empty() ? object.done : marks.back().queued;
  }
  if (queued - marked >= kBetweenMarks) {
    const uint64_t sequence =
        watch_stream(session, object, object.context, stream, kNotAsked, kNotAsked);
    if (sequence == 0) return 0;  // too many streams to count the queues of all
    if (!object.pace) object.pace = new Pace;
    marked = queued;
    object.pace->marks.push_back({queued, sequence});
  }
  const uint32_t full = object.done + kMost, next_mark = marked + kBetweenMarks;
  object.pace_at.store(is_before(full, next_mark) ? full : next_mark, std::memory_order_release);
  return is_before(queued, full) ? 0 : object.pace->marks.front().sequence;
}

}  // namespace

void pace(Session& session, Object& object, wire::ObjectId stream) {
  const uint32_t queued = object.queued.fetch_add(1, std::memory_order_relaxed);
  if (is_before(queued, object.pace_at.load(std::memory_order_acquire)) &&
      object.home->waits.load(std::memory_order_acquire) ==
          object.seen_waits.load(std::memory_order_relaxed)) [[likely]] {
    return;
  }
  while (const uint64_t sequence = look(session, object, stream, queued)) {
    (void)session.wait_word(object.word.load(std::memory_order_relaxed) - 1, sequence);
    if (session.lost()) return;
  }
}

void note_done(Object& object, uint32_t queued) {
  std::lock_guard lock(mutex);
  object.done = later(object.done, queued);
}

void forget_pace(Object& object) {
  std::lock_guard lock(mutex);
  delete std::exchange(object.pace, nullptr);
}

}  // namespace rcuda::client
