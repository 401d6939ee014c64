// StreamPlaces: records which places have been reached by their streams. A query of the driver
// costs a microsecond, and a program may queue hundreds of copies in one stream. So only the first
// place of each stream is queried, once per round; no later place can be reached before it. Used
// only by the engine thread.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>

#include "common/base/status.h"
#include "p2p/api/device_ops.h"

namespace rcuda::p2p {

class StreamPlaces {
 public:
  explicit StreamPlaces(DeviceOps& ops) : ops_(ops) {}

  // Call add() in the order in which the places were taken. StreamPlace::kNone is not in a stream;
  // add() and release() ignore it.
  void add(StreamPlace place, StreamRef stream);
  void release(StreamPlace place, const Status& status);
  void next_round() { ++round_; }
  Result<bool> reached(StreamPlace place);

 private:
  // The key of streams_: stream, context and, if the place is an event, the place itself, because
  // events are not ordered among each other.
  using Stream = std::array<uint64_t, 3>;
  struct Waiting {
    std::deque<StreamPlace> places;  // not yet known to be reached, in stream order
    uint64_t asked = 0;              // the round in which the first was queried
  };
  void remove(StreamPlace place);

  DeviceOps& ops_;
  uint64_t round_ = 1;
  std::map<Stream, Waiting> streams_;
  std::unordered_map<uint64_t, Stream> stream_of_;  // of places not yet reached
};

}  // namespace rcuda::p2p
