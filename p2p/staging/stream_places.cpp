#include "p2p/staging/stream_places.h"

#include <algorithm>

namespace rcuda::p2p {

void StreamPlaces::add(StreamPlace place, StreamRef stream) {
  if (place == StreamPlace::kNone) return;
  const auto number = static_cast<uint64_t>(place);
  const Stream key{stream.stream, stream.context, stream.event ? number : 0};
  streams_[key].places.push_back(place);
  stream_of_[number] = key;
}

Result<bool> StreamPlaces::reached(StreamPlace place) {
  const auto known = stream_of_.find(static_cast<uint64_t>(place));
  if (known == stream_of_.end()) return true;
  Waiting& waiting = streams_[known->second];
  if (waiting.places.front() != place || waiting.asked == round_) return false;
  const Result<bool> reached = ops_.reached(place);
  if (reached && !*reached) {
    waiting.asked = round_;
    return false;
  }
  remove(place);
  return reached;
}

void StreamPlaces::release(StreamPlace place, const Status& status) {
  if (place == StreamPlace::kNone) return;
  remove(place);
  ops_.release(place, status);
}

void StreamPlaces::remove(StreamPlace place) {
  const auto known = stream_of_.find(static_cast<uint64_t>(place));
  if (known == stream_of_.end()) return;
  const auto stream = streams_.find(known->second);
  auto& places = stream->second.places;
  places.erase(std::find(places.begin(), places.end(), place));
  if (places.empty()) streams_.erase(stream);
  stream_of_.erase(known);
}

}  // namespace rcuda::p2p
