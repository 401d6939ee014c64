// Handles the client gives to the application: streams, events, modules, graphs, ...
//
// Every handle points to an Object in one reserved arena of equal slots, so that any pointer an
// application passes, however wrong, is checked with three comparisons and one load before it is
// used: inside the arena, on a slot boundary, of the right kind. Slots are reused after the object
// is retired; the arena is never unmapped, so a stale handle reads as "no such object" or as its
// successor, never as freed memory.
//
// Threads: any. Creating and retiring take a mutex per arena; checking is lock-free. What an object
// points to (`extra`) is owned by the code that created it, and destroyed by the retire() caller.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "common/wire/protocol.h"

namespace rcuda::client {

class Session;
struct Pace;

struct alignas(128) Object {
  std::atomic<wire::Kind> kind{wire::Kind::kNone};
  std::atomic<bool> given_back{false};  // primary contexts: nobody holds it
  std::atomic<uint32_t> waits{0};       // contexts: see pace.h
  wire::ObjectId id = 0;       // on the worker; 0 for objects of several sessions (libraries)
  wire::ObjectId context = 0;  // context it was created in; its own id for contexts
  Session* session = nullptr;
  uint32_t device = 0;                // contexts, streams and events: the client's device ordinal
  uint32_t flags = 0;                 // stream, event or context flags, as given at creation
  int32_t priority = 0;               // streams
  std::atomic<uint32_t> word{0};      // events, streams: completion word + 1; 0: none yet
  std::atomic<uint64_t> sequence{0};  // events, streams: see progress.h
  std::atomic<uint64_t> watched{0};   // events, streams: sequence that `word` will reach
  std::atomic<uint64_t> learned{0};   // events, streams: Session::learned() when last unfinished
  std::atomic<uint64_t> finished{~0ull};  // events, streams: the state that was found finished
  // Streams: grows before and after every command that names it is sent; events: with every record.
  std::atomic<uint64_t> uses{0};
  // Streams, and contexts for their legacy default stream: see pace.h.
  std::atomic<uint32_t> queued{0};
  std::atomic<uint32_t> pace_at{0};
  uint32_t done = 0;
  std::atomic<uint32_t> seen_waits{0};
  Pace* pace = nullptr;
  Object* home = nullptr;
  void* extra = nullptr;            // per kind: Library*, KernelObject*, FunctionInfo*, ...
  std::atomic<uint64_t> serial{0};  // which no other object has or had
};
static_assert(sizeof(Object) == 128);

// Null when the handle is not a live object of that kind.
Object* find_object(const void* handle, wire::Kind kind);
// What other threads may look for objects by: it is there when they can find the object.
struct ObjectIdentity {
  wire::ObjectId id = 0;
  wire::ObjectId context = 0;
  Session* session = nullptr;
  uint32_t device = 0;
  void* extra = nullptr;
};
// Null when four million objects are alive.
Object* create_object(wire::Kind kind, const ObjectIdentity& identity = {});
void retire_object(Object* object);

// Every live object of a kind in a context.
std::vector<Object*> objects_in(wire::Kind kind, const Session* session, wire::ObjectId context);

// Calls `visit` for every live object of a kind; objects may come and go meanwhile, and their slots
// be others', but for what the caller keeps from going.
void for_each_object(wire::Kind kind, void (*visit)(Object*, void*), void* argument);

}  // namespace rcuda::client
