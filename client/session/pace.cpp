#include "client/session/pace.h"

#include <deque>
#include <memory>
#include <mutex>

#include "client/objects/stream.h"
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

bool is_before(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; }
uint32_t later(uint32_t a, uint32_t b) { return is_before(a, b) ? b : a; }

// The sequence to wait for before a command may be queued behind `queued` others; 0: it may.
uint64_t look(Session& session, WorkQueue& object, wire::ObjectId stream, uint32_t queued) {
  QueueState& queue = object.queue;
  std::lock_guard lock(session.pace_mutex());
  if (!queue.home) {
    queue.home = session.adopted<Context>(object.context, object.context, object.device);
  }
  // What other threads queue while somebody waits for the context counts as waited for.
  if (const uint32_t waits = queue.home->waits.load(std::memory_order_acquire);
      queue.seen_waits.exchange(waits, std::memory_order_relaxed) != waits) {
    queue.done = queued;
  }
  uint32_t marked = queue.done;
  if (queue.pace) {
    auto& marks = queue.pace->marks;
    const auto reached = [&](const Pace::Mark& mark) {
      CUresult ignored;
      return session.word_reached(object.progress.word.load(std::memory_order_relaxed) - 1,
                                  mark.sequence, &ignored);
    };
    for (; !marks.empty() && reached(marks.front()); marks.pop_front()) {
      queue.done = later(queue.done, marks.front().queued);
    }
    while (!marks.empty() && !is_before(queue.done, marks.front().queued)) marks.pop_front();
    marked = marks.empty() ? queue.done : marks.back().queued;
  }
  if (queued - marked >= kBetweenMarks) {
    const uint64_t sequence =
        watch_stream(session, object, object.context, stream, kNotAsked, kNotAsked);
    if (sequence == 0) return 0;  // too many streams to count the queues of all
    if (!queue.pace) queue.pace = std::make_unique<Pace>();
    marked = queued;
    queue.pace->marks.push_back({queued, sequence});
  }
  const uint32_t full = queue.done + kMost, next_mark = marked + kBetweenMarks;
  queue.pace_at.store(is_before(full, next_mark) ? full : next_mark, std::memory_order_release);
  return is_before(queued, full) ? 0 : queue.pace->marks.front().sequence;
}

}  // namespace

QueueState::QueueState() = default;

QueueState::~QueueState() = default;

void pace(Session& session, WorkQueue& object, wire::ObjectId stream) {
  QueueState& queue = object.queue;
  const uint32_t queued = queue.queued.fetch_add(1, std::memory_order_relaxed);
  if (is_before(queued, queue.pace_at.load(std::memory_order_acquire)) &&
      queue.home->waits.load(std::memory_order_acquire) ==
          queue.seen_waits.load(std::memory_order_relaxed)) [[likely]] {
    return;
  }
  while (const uint64_t sequence = look(session, object, stream, queued)) {
    (void)session.wait_word(object.progress.word.load(std::memory_order_relaxed) - 1, sequence);
    if (session.lost()) return;
  }
}

void note_done(WorkQueue& object, uint32_t queued) {
  std::lock_guard lock(object.session->pace_mutex());
  object.queue.done = later(object.queue.done, queued);
}

}  // namespace rcuda::client
