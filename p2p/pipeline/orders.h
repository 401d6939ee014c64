// Orders: which copies' streams have got to them. Asking a driver costs a microsecond, and a
// program may queue hundreds of copies in one stream: only the first of each stream is asked for,
// once per round, since no other can be reached before it. Used by the engine's thread alone.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>

#include "common/base/status.h"
#include "p2p/device_ops.h"

namespace rcuda::p2p {

class Orders {
 public:
  explicit Orders(DeviceOps& ops) : ops_(ops) {}

  // In the order in which they were taken. With Order::kNone, which has no place in a stream, these
  // two do nothing.
  void add(Order order, StreamRef stream);
  void release(Order order, const Status& status);
  void next_round() { ++round_; }
  Result<bool> reached(Order order);

 private:
  // Stream and context; an event's places have no order among one another, so each is its own.
  using Stream = std::array<uint64_t, 3>;
  struct Waiting {
    std::deque<Order> orders;  // not yet known to be reached, in stream order
    uint64_t asked = 0;        // the round in which the first was asked for
  };
  void remove(Order order);

  DeviceOps& ops_;
  uint64_t round_ = 1;
  std::map<Stream, Waiting> streams_;
  std::unordered_map<uint64_t, Stream> stream_of_;  // of orders not yet reached
};

}  // namespace rcuda::p2p
