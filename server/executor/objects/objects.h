// SessionObjects: resolves the ids of a session. It has the session's contexts and an ObjectTable
// for each kind of object, and tracks the thread's current context.
//
// Each device's primary context has an id from the start. Other contexts are added by bind(). Ids
// come from the wire, so every function accepts any number.
// Executor thread only. Nothing blocks. Ownership: handles belong to the driver and end with the
// process; this object only names them. Errors are the CUresults that a program gets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/wire/protocol.h"
#include "server/executor/objects/object_table.h"

namespace rcuda::server {

struct Departed;  // streams/idle.h: the work of a destroyed stream

inline CUresult read_uuid(const api::DriverTable& driver, CUdevice device,
                          std::span<uint8_t, sizeof(CUuuid)> bytes) {
  return driver.cuDeviceGetUuid_v2(reinterpret_cast<CUuuid*>(bytes.data()), device);
}

// One of the session's devices. Lists of them are in the client's order.
struct SessionDevice {
  CUdevice device = 0;
  CUcontext primary = nullptr;
  uint32_t ordinal = 0;  // the server's number
};

struct ContextState {
  wire::ObjectId id = 0;
  CUcontext handle = nullptr;
  CUdevice device = 0;
  std::vector<CUevent> free_events;    // without timing
  std::vector<CUstream> free_streams;  // non-blocking, for the private events of Completions
  CUstream idle_stream = nullptr;      // never gets work: synchronising it flushes device printf
  CUstream fetch_stream = nullptr;     // wire::kFetchStream; waits for no other stream
  CUevent mirrors_sent = nullptr;      // recorded in fetch_stream by Mirrors::sent()
  Object fetch_uses;                   // fetch_stream's use counts; handle stays null
  Object legacy_stream;                // the legacy stream's use counts; handle stays null
  uint64_t idle_at = 0;                // WorkCount::all() when all work was last known to be done
  std::vector<std::shared_ptr<Departed>> departed;
  CUfunction block_digests = nullptr;  // the kernel of BlockDigests, once it is loaded
  uint64_t generation = 0;  // counts resets; objects of an earlier generation have ended
};

// A stream that a command names.
struct SessionStream {
  CUstream handle = nullptr;  // null: the legacy default stream of `context`
  ContextState* context = nullptr;
  Object* object = nullptr;
  wire::ObjectId id = 0;
  uint64_t key = 0;  // unique, even if a new stream has the handle of a destroyed one
};

// The keys of streams without an id: one of these flags, combined with the context's id. They are
// the legacy default stream (kLegacyKey) and ContextState::fetch_stream (kFetchKey). The keys of
// other streams count from 1.
inline constexpr uint64_t kLegacyKey = 1ull << 63;
inline constexpr uint64_t kFetchKey = 1ull << 62;

class SessionObjects {
 public:
  SessionObjects(const api::DriverTable& driver, const std::vector<SessionDevice>& devices);

  // The ids of a kind. Contexts are found with find_context().
  ObjectTable& of(wire::Kind kind) { return tables_[static_cast<size_t>(kind)]; }

  ContextState* find_context(wire::ObjectId id);
  ContextState* find_context(CUcontext handle);
  ContextState* primary_of(CUdevice device);
  template <typename Visit>
  void for_each_context(Visit visit) {
    for (ContextState& context : primaries_) visit(context);
    for (auto& [id, context] : contexts_) visit(*context);
  }

  // Makes the context current on this thread. 0 changes nothing.
  CUresult make_current(wire::ObjectId id);
  ContextState* current_context() { return current_; }
  // To be called when a driver call may have changed the thread's current context.
  void forget_current() { current_ = nullptr; }

  // Id 0 is the legacy default stream of the current context. wire::kFetchStream is the context's
  // stream for fetches, which the first use creates. The call counts as a use of the stream.
  CUresult use_stream(wire::ObjectId id, SessionStream* stream);
  // The driver's handle; null for id 0. For a stream, the call counts as a use.
  CUresult find_handle(wire::Kind kind, wire::ObjectId id, void** handle);
  // Returns false if the id is in use or may not be minted by a client.
  bool bind(wire::Kind kind, wire::ObjectId id, void* handle);
  void unbind(wire::Kind kind, wire::ObjectId id);
  // To be called before a context is destroyed or reset. Unbinds the ids of all objects that belong
  // to the context, and forgets the events and streams that this worker made in it.
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
