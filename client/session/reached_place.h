// ReachedPlace: the place of an event's record in a stream, and functions to call when the stream
// has reached the place (reached_places.h).
//
// Threads: any. Does not block.
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
  // Places of a lost session, and of a stream that has failed, also count as reached.
  bool is_reached();
  // If the place counts as reached, calls the function at once. Otherwise ReachedPlaces calls it
  // later, on its thread. The function must not block. It may use other sessions, because
  // sessions live until the process ends.
  void call(std::function<void()> function);

 private:
  friend class ReachedPlaces;
  void reached();

  const std::weak_ptr<Timeline> timeline_;
  const uint64_t position_;
  // Used by the thread of ReachedPlaces only. `is_marked_`: the worker could not watch the event,
  // so the client has sent a mark to the stream. The worker writes the word again for the mark.
  Word word_;
  bool is_marked_ = false;
  Mutex mutex_;
  bool is_reached_ RCUDA_GUARDED_BY(mutex_) = false;
  std::vector<std::function<void()>> functions_ RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::client
