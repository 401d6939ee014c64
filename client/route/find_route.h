// The basis of the generated entry points (api/gen): find the worker of a call, send the command,
// wait for the reply.
//
// A generated entry point checks its arguments, then works in five steps. It gets a Route from a
// handle, an address or the current context, paces work for a stream, encodes the arguments with
// wire::Encoder (handles as ids), calls post() or call(), and decodes the outputs.
// Threads: any. post() blocks while the command ring is full. If it must wait for an answer, it
// also blocks until the answer has arrived. call() blocks until the reply has arrived, or returns
// kSessionLost if the session is lost (session.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <cuda.h>

#include "client/session/reply.h"
#include "client/session/route.h"
#include "common/cuda/cuda_result.h"
#include "common/wire/codec.h"
#include "common/wire/command.h"
#include "common/wire/protocol.h"

namespace rcuda::client {

class Session;
struct Allocation;
struct Identity;
struct Object;

// ---- the route of a call -----------------------------------------------------------------------

// Returns the route of the current context. Errors: those of Process::check(),
// CUDA_ERROR_INVALID_CONTEXT without a current context, and CUDA_ERROR_CONTEXT_IS_DESTROYED if the
// current context was destroyed or is a primary context that is no longer active.
CudaResult<Route> find_current_route();
// Returns the route for work in a stream: the current context. Without a valid current context,
// returns the context of the stream, or an error for a default stream.
CudaResult<Route> find_work_route(CUstream stream);
// Returns the route of a stream in its own context. Null is the default stream. Resolves
// CU_STREAM_LEGACY, CU_STREAM_PER_THREAD and the per-thread flag of
// common/interop/default_stream.h. Creates the thread's default stream at its first use, which
// posts a command. For the legacy default stream, also returns the errors of check_legacy_stream()
// (capture.h). Returns CUDA_ERROR_INVALID_HANDLE if the handle is not a live stream.
CudaResult<StreamRoute> find_stream_route(CUstream stream);
// Returns the route of a stream for commands that run in the context of `route`. The handle of the
// legacy default stream then means the legacy default stream of that context. Returns
// CUDA_ERROR_INVALID_HANDLE if the stream belongs to another session.
CudaResult<StreamRoute> find_stream_route(CUstream stream, const Route& route);
// Calls find_stream_route(stream), then pace(), for calls that send work to the stream. Blocks
// while the stream's queue is full.
CudaResult<StreamRoute> find_paced_stream(CUstream stream);
// Returns the route of the worker that owns an address, or of the current context if no worker owns
// it.
CudaResult<Route> find_address_route(CUdeviceptr address);
// Returns the route of a device. *ordinal becomes the worker's own number of the device.
CudaResult<Route> find_device_route(CUdevice device, uint32_t* ordinal);
// Returns a route for commands that need no context: the current context, or a context of the first
// session if there is no current context.
CudaResult<Route> find_any_route();
// Like find_any_route(), for callers that have already checked that the process has a session.
Route any_route();
// Returns the worker and context of an object, or of memory that has a session.
Route route_of(const Identity& object);
Route route_of(const Allocation& memory);
// Returns the route of a graph, a node or an executable. In CUDA these objects belong to no
// context. Their commands run in the current context if it is on the same worker, otherwise in the
// context in which the object was created.
Route route_of_graph(const Object& object);

// Returns the error of find_current_route(), or CUDA_SUCCESS.
CUresult check_current();
// Checks the contexts of a copy like find_work_route(), but a destroyed current context is an
// error, as with a local driver.
CUresult check_copy(CUstream stream);
// Like check_current(), but a thread without a current context is not an error. For calls that need
// no context. They fail if the current context is destroyed, as with a local driver.
CUresult check_not_destroyed();

// Returns the application's ordinal of a device that the route's worker has named.
int client_ordinal(const Route& route, uint32_t worker_ordinal);

// While an InContext exists, the route's context is the calling thread's current context. For
// functions of the API that always use the current context, when they must run in another context.
class InContext {
 public:
  explicit InContext(const Route& route);
  ~InContext();
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;
};

// ---- objects -----------------------------------------------------------------------------------

// Finds the object of a handle; handles.h has the functions for libraries and kernels. Returns
// CUDA_ERROR_INVALID_HANDLE if the handle is not a live object, and CUDA_ERROR_CONTEXT_IS_DESTROYED
// for a released primary context.
CUresult find_live(const void* handle, wire::Kind kind, const Object** object);

// Creates an object and assigns its id, for a create call. `handle`: the handle for the
// application.
CUresult mint(const Route& route, wire::Kind kind, void** handle, wire::ObjectId* id);
// Returns the handle for an id that the worker assigned (kWorkerMinted). Makes the object when the
// worker first names it. Null for id 0.
void* wrap_id(const Route& route, wire::Kind kind, wire::ObjectId id);
// Destroys a handle's object and releases its id. Call it after the command that destroys the
// object was posted, or after the command that creates it failed.
void retire(const void* handle, wire::Kind kind);

// Destroys the handles of objects that belong to another object, such as a context. Use it before
// sending the command that destroys the other object, and keep the RetiredEarly until the command
// is sent. Until then the ids stay in use: the worker still has them bound, so no create of another
// thread may use them.
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

// Waits until the context is idle, for calls in which a driver waits for it. The client waits,
// because the worker's executor thread serves all commands and must not block. Other threads may
// keep using the context. Does nothing while any capture is in progress.
CUresult await_idle(Session& session, wire::ObjectId context);
// Waits until the context is idle. For a primary context, also waits for its green contexts.
CUresult synchronize_with_greens(Session& session, wire::ObjectId context);
// Returns the owner of objects that are created in the route's context (process.h).
wire::ObjectId owning_context_id(const Route& route);

// Sends a command for an entry point that reports asynchronous errors. Returns the error of this
// command if it was refused or not sent (kSessionLost included), otherwise the error of an earlier
// command, or CUDA_SUCCESS. *refused says whether this command was refused or not sent; `refused`
// may be null.
CUresult post(const Route& route, const wire::Command& command, bool* refused = nullptr);

// Logs that the worker's reply to this command is malformed. Returns CUDA_ERROR_UNKNOWN.
CUresult malformed_reply(const Route& route, uint16_t opcode);

// Sends the command and waits for its reply. Returns the worker's CUresult. `reply_bytes`: capacity
// for the reply's body.
CUresult call(const Route& route, const wire::Command& command, size_t reply_bytes, Reply* reply);

}  // namespace rcuda::client
