#include "client/session/reached_places.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <pthread.h>

#include "client/session/session.h"
#include "client/session/timeline.h"
#include "common/base/log.h"
#include "common/base/start_thread.h"

namespace rcuda::client {

ReachedPlaces::~ReachedPlaces() {
  MutexLock lock(mutex_);
  stop_ = true;
  std::thread thread = std::move(thread_);
  lock.unlock();
  if (!thread.joinable()) return;
  changed_.notify_all();
  session_.link().interrupt();
  thread.join();
}

std::shared_ptr<ReachedPlace> ReachedPlaces::watch(const EventRecord& record) {
  MutexLock lock(mutex_);
  if (!thread_.joinable()) {
    if (const Status started = start_thread(&thread_, [this] { run(); }); !started.ok()) {
      RCUDA_DEBUG(
          "copies between servers through this host's memory take longer, because a thread cannot "
          "be started: %s",
          started.context().c_str());
      return nullptr;
    }
  }
  lock.unlock();
  std::optional<Word> word = session_.words().acquire_spare();
  if (!word) return nullptr;
  ++word->sequence;
  auto watched = std::make_shared<ReachedPlace>(record.timeline, record.position, *word);
  // Add the place before sending the command. If the thread already sleeps for another place, only
  // the worker's word wakes it, and the thread must then find this place.
  lock.lock();
  watched_.push_back(watched);
  lock.unlock();
  changed_.notify_all();
  const wire::WatchEventBody body{record.event,   word->index,           word->sequence,
                                  record.command, wire::WatchFor::kWait, 0};
  SentCommand sent;
  (void)session_.post(record.route, body, transport::Wake::kYes, &sent);
  if (sent.is_sent()) return watched;
  lock.lock();
  if (std::erase(watched_, watched) != 0) session_.words().release(*word);
  return nullptr;
}

std::vector<std::shared_ptr<ReachedPlace>> ReachedPlaces::take_reached() {
  const bool lost = session_.lost();
  MutexLock lock(mutex_);
  const auto first = std::partition(watched_.begin(), watched_.end(), [&](const auto& place) {
    CUresult ignored;
    return !lost && !session_.word_reached(place->word_, &ignored);
  });
  std::vector<std::shared_ptr<ReachedPlace>> taken(std::make_move_iterator(first),
                                                   std::make_move_iterator(watched_.end()));
  watched_.erase(first, watched_.end());
  return taken;
}

void ReachedPlaces::run() {
  pthread_setname_np(pthread_self(), "rcuda-reached");
  for (;;) {
    {
      MutexLock lock(mutex_);
      changed_.wait(lock, [this]() RCUDA_REQUIRES(mutex_) { return stop_ || !watched_.empty(); });
      if (stop_) return;
    }
    std::vector<std::shared_ptr<ReachedPlace>> places;
    const auto take = [&] {
      for (std::shared_ptr<ReachedPlace>& place : take_reached()) {
        places.push_back(std::move(place));
      }
    };
    (void)session_.wait_for([&] {
      take();
      MutexLock lock(mutex_);
      return stop_ || !places.empty();
    });
    take();  // takes all places if the session is lost
    for (const auto& place : places) take_up(place);
  }
}

void ReachedPlaces::take_up(const std::shared_ptr<ReachedPlace>& place) {
  CUresult result = CUDA_SUCCESS;
  if (session_.word_reached(place->word_, &result)) {
    const std::shared_ptr<Timeline> timeline = place->timeline_.lock();
    if (timeline && result != CUDA_SUCCESS && !place->is_marked_) {
      place->is_marked_ = true;
      ++place->word_.sequence;
      (void)session_.post_mark(*timeline, place->word_);
      MutexLock lock(mutex_);
      watched_.push_back(place);
      return;
    }
    session_.words().release(place->word_);
    if (timeline && result == CUDA_SUCCESS) timeline->advance(place->position_);
  }
  place->reached();
}

}  // namespace rcuda::client
