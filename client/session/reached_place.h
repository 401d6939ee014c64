// ReachedPlace: the place of an event's record in a stream, and functions that are called when the
// stream has reached it (reached_places.h).
//
// Threads: any. Does not block, except for the functions that call() calls.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "client/session/completion_words.h"
#include "common/base/mutex.h"

namespace rcuda::client {

class Timeline;

class ReachedPlace {
 public:
  // `word`: the worker writes it when the stream has reached the place.
  ReachedPlace(const std::shared_ptr<Timeline>& timeline, uint64_t position, Word word)
      : timeline_(timeline), position_(position), word_(word) {}
  ReachedPlace(const ReachedPlace&) = delete;
  ReachedPlace& operator=(const ReachedPlace&) = delete;

  // Whether all work of the timeline up to the position comes before this place.
  bool covers(const std::weak_ptr<const Timeline>& timeline, uint64_t position) const;
  // Whether both places are in the same stream.
  bool is_in_stream_of(const ReachedPlace& other) const;
  bool is_reached();
  // Calls the function when the stream has reached the place: on the thread of ReachedPlaces, or
  // before this call returns. The function must not block.
  void call(std::function<void()> function);

 private:
  friend class ReachedPlaces;
  void reached();

  const std::weak_ptr<Timeline> timeline_;
  const uint64_t position_;
  const Word word_;  // the worker writes it when the stream has reached the place
  Mutex mutex_;
  bool is_reached_ RCUDA_GUARDED_BY(mutex_) = false;
  std::vector<std::function<void()>> functions_ RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::client
