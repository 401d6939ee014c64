// DeviceTrace: measures when the GPU did the work of traced commands.
//
// Each launch and copy gets a timing event before it and one after it, unless its stream is in
// capture. Their distance to an anchor, an event whose time is known, says when they came. The
// anchor is recorded anew every second, because times between events have the resolution of a
// float. It has an idle stream of its own, so it comes at once. A session makes this object with
// its first traced command; other sessions pay nothing. Executor thread only. Blocking: the first
// command of a context and one a second spin until the anchor has come, some 10 µs as a rule.
// Errors: a command that cannot be measured is missing in the timeline.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include <cuda.h>

#include "common/wire/protocol.h"
#include "server/executor/objects/objects.h"

namespace rcuda::server {

class DeviceTrace {
 public:
  // Both outlive this object.
  DeviceTrace(const api::DriverTable& driver, SessionObjects& objects)
      : driver_(driver), objects_(objects) {}

  // To be called before and after the handler of a command, whose context is current.
  void before(const wire::CommandHeader& header, std::span<const std::byte> body, uint64_t number);
  void after();
  // Appends the events of commands that the GPU has finished.
  void poll(std::vector<wire::TraceEvent>* events);
  bool pending() const { return !queues_.empty(); }
  // A context is about to be destroyed or reset, and its events with it.
  void forget_all();

 private:
  using Clock = std::chrono::steady_clock;

  // An event and when it was recorded.
  struct Anchor {
    CUevent event = nullptr;
    Clock::time_point time;
  };
  struct Context {
    CUstream stream = nullptr;
    std::shared_ptr<Anchor> anchor;
    std::vector<CUevent> free_events;
  };
  struct Work {
    CUevent start = nullptr, end = nullptr;
    std::shared_ptr<Anchor> anchor;
    wire::TraceEvent event{};  // begin_ns: when it was queued
  };

  bool take_anchor(Context& context);
  bool take_event(Context& context, CUevent* event);
  bool finish(const Work& work, std::vector<wire::TraceEvent>* events);

  const api::DriverTable& driver_;
  SessionObjects& objects_;
  std::unordered_map<wire::ObjectId, Context> contexts_;
  std::unordered_map<uint64_t, std::deque<Work>> queues_;  // by SessionStream::key, while not empty
  size_t pending_ = 0;
  SessionStream stream_;  // of the command between before() and after()
  Work open_;             // of that command; start is null if it is not measured
};

}  // namespace rcuda::server
