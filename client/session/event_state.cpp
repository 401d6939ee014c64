#include "client/session/event_state.h"

#include <utility>

#include "client/session/news.h"
#include "client/session/session.h"
#include "client/session/wait.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {

EventState::Recording::Recording(EventState& state) : state_(state) {
  MutexLock lock(state_.mutex_);
  record_ = ++state_.record_;
  earlier_ = std::exchange(state_.place_, {});
  state_.forget_done();
}

EventState::Recording::~Recording() {
  MutexLock lock(state_.mutex_);
  const bool was_alone = state_.record_++ == record_;
  state_.place_ = was_alone ? std::move(place_) : Place{};
  state_.forget_done();
}

void EventState::Recording::is_at(Timeline& timeline, uint64_t position, uint64_t command) {
  place_ = {timeline.shared_from_this(), position, command};
}

void EventState::Recording::failed() { place_ = std::move(earlier_); }

void EventState::leave_to_worker() {
  MutexLock lock(mutex_);
  left_to_worker_ = true;
  forget_done();
}

void EventState::forget_done() {
  pending_.clear();
  fetched_ = false;
  done_ = false;
}

Progress EventState::progress(uint64_t* record, CUresult* result) {
  *result = CUDA_SUCCESS;
  *record = 0;
  if (is_fetched()) return Progress::kDone;
  if (pending_.holds(session())) return Progress::kPending;
  MutexLock lock(mutex_);
  *record = record_;
  if (done_) return Progress::kDone;
  if (left_to_worker_) return Progress::kUnknown;
  const bool is_reported = word_ && watched_ == record_ && session().word_reached(*word_, result);
  if (place_.timeline && place_.timeline->has_reached(place_.position)) {
    *result = CUDA_SUCCESS;
    set_done();
    return Progress::kDone;
  }
  if (!is_reported) return Progress::kUnknown;
  if (*result != CUDA_SUCCESS) return Progress::kDone;
  News::add();
  set_done();
  return Progress::kDone;
}

void EventState::found_pending(uint64_t record, uint64_t news) {
  MutexLock lock(mutex_);
  if (left_to_worker_ || record != record_) return;
  CUresult ignored;
  const bool is_under_way =
      word_ && watched_ == record_ && !session().word_reached(*word_, &ignored);
  if (!is_under_way) {
    if (!word_) word_ = session().words().acquire_spare();
    if (!word_) return;  // no word is free: each query asks the worker
    const wire::WatchEventBody body{
        event_, word_->index, ++word_->sequence, place_.command, wire::WatchFor::kReport, 0};
    (void)session().post(route_, body);
    watched_ = record_;
  }
  pending_.set(*word_, news);
}

void EventState::found_done(uint64_t record) {
  News::add();
  MutexLock lock(mutex_);
  if (record != record_ || left_to_worker_) return;
  set_done();
}

void EventState::note_fetched(uint64_t record) {
  MutexLock lock(mutex_);
  if (record == record_ && done_) fetched_ = true;
}

void EventState::set_done() {
  if (place_.timeline) place_.timeline->advance(place_.position);
  done_ = true;
  // Releases the word unless the worker still has to write it.
  CUresult ignored;
  if (word_ && session().word_reached(*word_, &ignored)) release_word();
}

void EventState::release_word() {
  if (word_) session().words().release(*std::exchange(word_, std::nullopt));
}

EventState::~EventState() { release_word(); }

EventState::Place EventState::place() {
  MutexLock lock(mutex_);
  return left_to_worker_ ? Place() : place_;
}

CUresult EventState::query(const Place& place) {
  RCUDA_RETURN_IF_CUDA_ERROR(session().await_room());
  const WaitWord word(session().words());
  const wire::WatchEventBody body{event_,        word.get().index,       word.get().sequence,
                                  place.command, wire::WatchFor::kQuery, 0};
  SentCommand sent;
  const CUresult result = session().post(route_, body, transport::Wake::kNow, &sent);
  if (!sent.is_sent()) return session().lost() ? kSessionLost : result;
  const CUresult answer = session().wait_word(word.get());
  return result == CUDA_SUCCESS ? answer : result;
}

CUresult EventState::wait() {
  uint64_t record, command;
  {
    MutexLock lock(mutex_);
    record = record_;
    command = left_to_worker_ ? 0 : place_.command;
  }
  Wait wait(route_);
  wait.when_done([this, record] { found_done(record); });
  // A separate word: the event's own word is reused for later records, perhaps on another stream.
  const CUresult result =
      wait.run(wire::WatchEventBody{event_, 0, 0, command, wire::WatchFor::kWait, 0});
  if (result == CUDA_SUCCESS) note_fetched(record);
  return result;
}

}  // namespace rcuda::client
