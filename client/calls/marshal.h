// What the generated entry points (api/gen) stand on: find out where a call goes, send it, wait.
//
// A generated entry point does: Target from the routing handle or the current context; encode the
// arguments with wire::Encoder, handles as ids; post() or call(); on success decode the outputs.
// Threads: any. post() blocks only while the command ring is full; call() until the reply is there
// or the session broke, which gives kSessionLost (session.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <cuda.h>

#include "client/channel/reply.h"
#include "client/channel/target.h"
#include "common/wire/codec.h"
#include "common/wire/protocol.h"

namespace rcuda::client {

class Session;
struct Context;
struct Object;

// The worker and context of an object.
Target target_of(const Object& object);

// CUDA_ERROR_NOT_INITIALIZED before cuInit; CUDA_ERROR_INVALID_CONTEXT without a current context,
// CUDA_ERROR_CONTEXT_IS_DESTROYED where it was destroyed, or is a primary one that was given back.
CUresult target_current(Target* target);
// The same for work in a stream: a stream that was created has a context, and needs no current one.
CUresult target_for_work(CUstream stream, Target* target);
// The same for copies, which a driver refuses all the same where the current one is destroyed.
CUresult target_for_copy(CUstream stream, Target* target);
// The same for what a driver takes in streams of any context: the target is the stream's own.
CUresult target_of_stream(CUstream stream, Target* target);
// For what needs no context: the current one, else the first session's.
Target target_anywhere();
// The worker of a device; `ordinal` becomes that worker's own device number.
CUresult target_device(CUdevice device, Target* target, uint32_t* ordinal);
// The other way: the application's number of a device that the target's worker named.
int client_ordinal(const Target& target, uint32_t worker_ordinal);
// The worker of a graph, a node or an executable. They belong to no context: what they do is done
// in the current one if it is that worker's, else in the one in which the object was named.
Target target_of_graph(const Object& object);
// Uses the worker that owns an address; the current context's for addresses that are no worker's.
CUresult target_address(CUdeviceptr address, Target* target);
// For what needs no context, but as with a driver none that is destroyed: target_current() without
// CUDA_ERROR_INVALID_CONTEXT.
CUresult check_not_destroyed();

// Makes the target's context the calling thread's current one for its scope: for calls that go to
// the current context, where another one is meant.
class InContext {
 public:
  explicit InContext(const Target& target);
  ~InContext();
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;
};

// A handle to its id. Null handles give id 0 and leave the target alone (streams: legacy default).
// A target without session takes the handle's; another session gives CUDA_ERROR_INVALID_HANDLE, as
// does a handle that is none. Streams: CU_STREAM_LEGACY, CU_STREAM_PER_THREAD and the per-thread
// flag of common/interop/default_stream.h are resolved here.
// The target's timeline becomes the stream's. The caller waits if the stream's queue is full.
CUresult resolve(const void* handle, wire::Kind kind, Target* target, wire::ObjectId* id);
// The same for a stream that is only asked about.
CUresult resolve_unused(CUstream stream, Target* target, wire::ObjectId* id);

// Mints an object for a create call; the handle is what the application gets.
CUresult mint(const Target& target, wire::Kind kind, void** handle, wire::ObjectId* id);
// The handle for an id that the worker named (kWorkerMinted), made on first sight; null for 0.
void* adopt(const Target& target, wire::Kind kind, wire::ObjectId id);
// Forgets a handle after its destroy was posted, or after its create failed.
void retire(const void* handle, wire::Kind kind);

// Forgets handles before the command is sent that destroys with one object all that is in it. Their
// ids stay taken while it lives, which is until that command was sent: the worker has them bound
// until then, and another thread's create must not come first with one of them.
class RetiredEarly {
 public:
  RetiredEarly() = default;
  ~RetiredEarly();
  RetiredEarly(const RetiredEarly&) = delete;
  RetiredEarly& operator=(const RetiredEarly&) = delete;

  void add(Object* object);

 private:
  struct TakenId {
    Session* session;
    wire::Kind kind;
    wire::ObjectId id;
  };
  std::vector<TakenId> taken_;
};

// Until nothing is under way in the context, for calls in which a driver waits for that: the
// worker's one thread must not wait there, with whatever else was asked of it. Other threads may go
// on using the context; while anything captures nothing is waited for.
CUresult await_idle(Session& session, wire::ObjectId context);

// Sends a command for an entry point that reports asynchronous errors. The result is that the
// session is lost, or the error of an earlier command, else success.
CUresult post(const Target& target, uint16_t opcode, std::span<const std::byte> body);
template <typename Body>
CUresult post(const Target& target, wire::Custom opcode, const Body& body) {
  return post(target, static_cast<uint16_t>(opcode), std::as_bytes(std::span(&body, 1)));
}

// Round trip. The returned CUresult is the worker's. `reply_bytes`: what the body may take.
CUresult call(const Target& target, uint16_t opcode, std::span<const std::byte> body,
              size_t reply_bytes, Reply* reply);

}  // namespace rcuda::client
