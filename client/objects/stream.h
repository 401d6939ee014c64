// Streams, contexts and events: what work is queued in, and what tells how far it is.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "client/objects/object.h"

namespace rcuda::client {

struct Context;
struct Pace;

// How far the work behind a stream or an event is; progress.h says what each field is for.
struct ProgressState {
  std::atomic<uint32_t> word{0};          // completion word + 1; 0: none yet
  std::atomic<uint64_t> sequence{0};      // what the word's answer stands for
  std::atomic<uint64_t> watched{0};       // sequence that `word` will reach
  std::atomic<uint64_t> learned{0};       // Session::learned() when last unfinished
  std::atomic<uint64_t> finished{~0ull};  // the state that was found finished
  // Streams: grows before and after every command that names it is sent; events: with every record.
  std::atomic<uint64_t> uses{0};
};

// How full the queue of a stream is; see pace.h.
struct QueueState {
  QueueState();
  ~QueueState();  // where Pace is known

  std::atomic<uint32_t> queued{0};
  std::atomic<uint32_t> pace_at{0};
  uint32_t done = 0;  // this and `pace`: guarded by Session::pace_mutex()
  std::atomic<uint32_t> seen_waits{0};
  std::unique_ptr<Pace> pace;
  Context* home = nullptr;
};

// What commands are queued in: a stream, or a context for its legacy default stream.
struct WorkQueue : Object {
  ProgressState progress;
  QueueState queue;

 protected:
  using Object::Object;
  ~WorkQueue();  // gives the completion word back
};

struct Context : WorkQueue {
  static constexpr wire::Kind kKind = wire::Kind::kContext;
  explicit Context(const Identity& identity) : WorkQueue(kKind, identity) {}

  unsigned flags = 0;                   // as given at creation
  std::atomic<bool> given_back{false};  // a primary one that nobody holds
  std::atomic<uint32_t> waits{0};       // how often somebody has waited for all that is in it
};

struct Stream : WorkQueue {
  static constexpr wire::Kind kKind = wire::Kind::kStream;
  explicit Stream(const Identity& identity) : WorkQueue(kKind, identity) {}

  unsigned flags = 0;  // as given at creation
  int32_t priority = 0;
};

struct Event : Object {
  static constexpr wire::Kind kKind = wire::Kind::kEvent;
  explicit Event(const Identity& identity) : Object(kKind, identity) {}
  ~Event();  // gives the completion word back

  unsigned flags = 0;  // as given at creation
  ProgressState progress;
};

}  // namespace rcuda::client
