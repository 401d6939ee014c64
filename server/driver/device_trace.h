// DeviceTrace: measures when the GPU did the work of traced commands.
//
// Each launch and copy gets a timing event before it and one after it, unless its stream is in
// capture. An anchor is an event whose host time is known; the time from the anchor to these events
// gives the time of the work. The anchor is recorded again every second, because the driver returns
// times between events as a float, whose resolution is too low for long times. The anchor has an
// idle stream of its own, so it completes immediately.
//
// A session makes this object with its first traced command; other sessions pay nothing. Executor
// thread only. Blocking: the first command of a context, and then one command per second, spins
// until the anchor has completed, usually for about 10 µs, at most for 20 ms. Errors: a command
// that cannot be measured is missing from the trace.
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
  // The arguments outlive this object.
  DeviceTrace(const api::DriverTable& driver, SessionObjects& objects)
      : driver_(driver), objects_(objects) {}

  // Call these before and after a command's handler, with the command's context current.
  void before(const wire::CommandHeader& header, std::span<const std::byte> body, uint64_t number);
  void after();
  // Appends the events of commands that the GPU has finished.
  void poll(std::vector<wire::TraceEvent>* events);
  bool pending() const { return !queues_.empty(); }
  // Call before a context is destroyed or reset, because its events end then. Drops the pending
  // measurements of all contexts.
  void forget_all();

 private:
  using Clock = std::chrono::steady_clock;

  // An event and the host time at which it completed.
  struct Anchor {
    CUevent event = nullptr;
    Clock::time_point time;
  };
  struct Context {
    CUstream stream = nullptr;
    std::shared_ptr<Anchor> anchor;
  };
  struct Work {
    CUevent start = nullptr, end = nullptr;
    std::shared_ptr<Anchor> anchor;
    wire::TraceEvent event{};  // begin_ns: when the work was queued
  };

  bool take_anchor(Context& context);
  void destroy_events(const Work& work);  // skips events that do not exist
  bool finish(const Work& work, std::vector<wire::TraceEvent>* events);

  const api::DriverTable& driver_;
  SessionObjects& objects_;
  std::unordered_map<wire::ObjectId, Context> contexts_;
  std::unordered_map<uint64_t, std::deque<Work>>
      queues_;  // by SessionStream::key; no queue is empty
  size_t pending_ = 0;
  SessionStream stream_;  // of the command between before() and after()
  Work open_;             // of this command; start is null if it is not measured
};

}  // namespace rcuda::server
