// SessionObjects: what the ids of a session stand for: its contexts, and one ObjectTable for each
// other kind. Also the thread's current context.
//
// Each device's primary context has an id from the start. Other contexts come with bind(). Ids come
// from the wire, so every function takes any number.
// Executor thread only. Nothing blocks. Ownership: handles belong to the driver and end with the
// process; this object only names them. Errors are the CUresults that a program gets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/wire/protocol.h"
#include "server/executor/objects/object_table.h"

namespace rcuda::server {

struct Departed;  // idle.h: the work of a destroyed stream

// One of the session's devices, in the client's order.
struct SessionDevice {
  CUdevice device = 0;
  CUcontext primary = nullptr;
};

struct ContextState {
  wire::ObjectId id = 0;
  CUcontext handle = nullptr;
  CUdevice device = 0;
  std::vector<CUevent> free_events;    // without timing
  std::vector<CUstream> free_streams;  // non-blocking ones, for moved watches
  CUstream idle_stream = nullptr;      // never used: synchronising it flushes device printf
  CUstream fetch_stream = nullptr;     // for mirrors.h; waits for no other
  Object fetch_uses;
  Object legacy_stream;  // handle stays null; for its use counts
  uint64_t idle_at = 0;  // WorkCount::all() when everything was last known to be done
  std::vector<std::shared_ptr<Departed>> departed;
};

// A stream that a command names.
struct SessionStream {
  CUstream handle = nullptr;  // null: the legacy default stream of `context`
  ContextState* context = nullptr;
  Object* object = nullptr;
  wire::ObjectId id = 0;
  uint64_t key = 0;  // differs for every stream, even if a new one has a destroyed one's handle
};

// Keys of streams that have no id: legacy default streams, and those that serve mirrors. Those of
// created streams are counted from 1.
inline constexpr uint64_t kLegacyKey = 1ull << 63;
inline constexpr uint64_t kFetchKey = 1ull << 62;

class SessionObjects {
 public:
  SessionObjects(const api::DriverTable& driver, const std::vector<SessionDevice>& devices);

  // The ids of a kind other than kContext.
  ObjectTable& of(wire::Kind kind) { return tables_[static_cast<size_t>(kind)]; }

  ContextState* find_context(wire::ObjectId id);
  ContextState* find_context(CUcontext handle);
  ContextState* primary_of(CUdevice device);
  template <typename Visit>
  void for_each_context(Visit visit) {
    for (ContextState& context : primaries_) visit(context);
    for (auto& [id, context] : contexts_) visit(*context);
  }

  // Makes it the thread's current context. 0 leaves the thread as it is.
  CUresult make_current(wire::ObjectId id);
  ContextState* current_context() { return current_; }
  // A driver call may have changed the thread's current context.
  void forget_current() { current_ = nullptr; }

  // 0 is the legacy default stream of the current context. Counts the use.
  CUresult find_stream(wire::ObjectId id, SessionStream* stream);
  // The driver's handle; null for id 0, except for streams.
  CUresult find_handle(wire::Kind kind, wire::ObjectId id, void** handle);
  // False if the id is in use or is not the client's to mint.
  bool bind(wire::Kind kind, wire::ObjectId id, void* handle);
  void unbind(wire::Kind kind, wire::ObjectId id);
  // A context is about to be destroyed or reset: its streams, events, modules, functions and
  // arrays have no ids any more, and what the driver kept in it for this worker is gone.
  void forget_objects_of(ContextState& context);

 private:
  const api::DriverTable& driver_;
  std::array<ObjectTable, static_cast<size_t>(wire::Kind::kCount)> tables_;
  std::vector<ContextState> primaries_;
  std::unordered_map<wire::ObjectId, std::unique_ptr<ContextState>> contexts_;
  ContextState* current_ = nullptr;
  uint64_t uses_ = 0;
  uint64_t next_key_ = 1;
};

}  // namespace rcuda::server
