// DeviceTrace: when the GPU did what traced commands asked for.
//
// A timing event before and one after the work of each launch and copy, as far as the stream is not
// in capture; how far they lie from an event whose time is known says when they came. That event is
// recorded anew every second, on a stream of its own where it comes at once, because times between
// events have the resolution of a float. Made for a session that is traced; others pay nothing.
// The executor thread's alone. Nothing blocks, but a new context's first event and one a second are
// spun for, some 10 µs as a rule. Whatever fails costs a slice of the timeline and nothing else.
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
#include "server/executor/executor.h"

namespace rcuda::server {

class DeviceTrace {
 public:
  explicit DeviceTrace(Executor& executor) : executor_(executor) {}

  // Around the handler of a command. Its context is current.
  void before(const wire::CommandHeader& header, std::span<const std::byte> body, uint64_t number);
  void after();
  // Appends what the GPU has finished.
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

  Executor& executor_;
  std::unordered_map<wire::ObjectId, Context> contexts_;
  std::unordered_map<uint64_t, std::deque<Work>> queues_;  // by StreamRef::key, while not empty
  size_t pending_ = 0;
  StreamRef stream_;  // of the command between before() and after()
  Work open_;         // start: null without one
};

}  // namespace rcuda::server
