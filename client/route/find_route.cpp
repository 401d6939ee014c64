#include "client/route/find_route.h"

#include "api/opcodes.h"
#include "client/objects/kinds.h"
#include "client/objects/named.h"
#include "client/process/process.h"
#include "client/route/capture.h"
#include "client/route/default_streams.h"
#include "client/session/session.h"
#include "client/session/timeline.h"
#include "client/session/wait.h"
#include "common/base/log.h"
#include "common/cuda/return_if_error.h"
#include "common/interop/default_stream.h"

namespace rcuda::client {
namespace {

// Returns the calling thread's current context. Errors: no context is current, or it is destroyed.
CUresult find_current(Context** context) {
  const Ref<Context> current = current_context();
  if (!current.handle()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = current.get();
  return *context && !(*context)->given_back.load(std::memory_order_acquire)
             ? CUDA_SUCCESS
             : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

// Returns the route of the legacy default stream of `context`. `route`: the context in which the
// command runs; null: the stream's own context.
CudaResult<StreamRoute> legacy_stream(Context& context, const Route* route) {
  const bool is_on_worker = route && route->session == context.session;
  const bool is_current =
      !route || (is_on_worker &&
                 (route->context == context.id || route->context == owning_context(context).id));
  RCUDA_RETURN_IF_CUDA_ERROR(check_legacy_stream());
  if (!is_current) return StreamRoute{{route->session, route->context, route->device}, 0, nullptr};
  return StreamRoute{
      {context.session, context.id, context.device, context.timeline.get()}, 0, nullptr};
}

CudaResult<StreamRoute> find_stream(const void* handle, const Route* route) {
  const bool per_thread =
      handle == CU_STREAM_PER_THREAD || (!handle && interop::per_thread_default_stream());
  Stream* stream = nullptr;
  if (per_thread || !handle || handle == CU_STREAM_LEGACY) {
    Context* context;
    RCUDA_RETURN_IF_CUDA_ERROR(find_current(&context));
    // A driver has no per-thread default stream in a green context (seen with driver 580 on an
    // H100).
    if (per_thread && context->green) return CUDA_ERROR_INVALID_HANDLE;
    if (!per_thread) return legacy_stream(*context, route);
    RCUDA_RETURN_IF_CUDA_ERROR(per_thread_stream(*context, &stream));
  } else {
    stream = find<Stream>(handle);
  }
  if (!stream || (route && route->session != stream->session)) return CUDA_ERROR_INVALID_HANDLE;
  const Route in = route ? *route : route_of(*stream);
  return StreamRoute{
      {in.session, in.context, in.device, stream->timeline.get()}, stream->id, stream};
}

// Returns the context of a new object. An object that belongs to no context gets the primary
// context of its device, which always exists.
wire::ObjectId home_of(const Route& route, wire::Kind kind, wire::ObjectId id) {
  switch (kind) {
    case wire::Kind::kContext:
      return id;
    case wire::Kind::kGraph:
    case wire::Kind::kGraphNode:
    case wire::Kind::kMemoryPool:
      return Process::get().device(static_cast<CUdevice>(route.device))->primary->id;
    default:
      return route.context;
  }
}

// Destroys the client's object but does not release its id.
void forget(Object* object) {
  forget_named(*object);
  destroy_object(object);
}

}  // namespace

CUresult check_current() {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  Context* context;
  return find_current(&context);
}

CUresult check_copy(CUstream stream) {
  const CUresult result = check_current();
  return result == CUDA_ERROR_INVALID_CONTEXT && find<Stream>(stream) ? CUDA_SUCCESS : result;
}

CUresult check_not_destroyed() {
  const CUresult result = check_current();
  return result == CUDA_ERROR_INVALID_CONTEXT ? CUDA_SUCCESS : result;
}

CudaResult<Route> find_current_route() {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  Context* context;
  RCUDA_RETURN_IF_CUDA_ERROR(find_current(&context));
  return route_of(owning_context(*context));
}

CudaResult<Route> find_work_route(CUstream stream) {
  const CudaResult<Route> current = find_current_route();
  if (current) [[likely]]
    return current;
  const auto* created = find<Stream>(stream);
  return created ? route_of(*created) : current;
}

CudaResult<StreamRoute> find_stream_route(CUstream stream) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  return find_stream(stream, nullptr);
}

CudaResult<StreamRoute> find_stream_route(CUstream stream, const Route& route) {
  return find_stream(stream, &route);
}

CudaResult<StreamRoute> find_paced_stream(CUstream stream) {
  const CudaResult<StreamRoute> found = find_stream_route(stream);
  if (found) pace(*found);
  return found;
}

CudaResult<Route> find_address_route(CUdeviceptr address) {
  Process& process = Process::get();
  RCUDA_RETURN_IF_CUDA_ERROR(process.check());
  if (const auto allocation = process.memory().find(address); allocation && allocation->session) {
    return route_of(*allocation);
  }
  const CudaResult<Route> current = find_current_route();
  Session* session = process.session_of_address(address);
  if (!session) {
    if (const auto reserved = process.memory().reservation(address)) session = reserved->session;
  }
  if (!session || (current && current->session == session)) return current;
  return Route{session, wire::primary_context_id(0), process.ordinal_of(*session, 0)};
}

CudaResult<Route> find_device_route(CUdevice device, uint32_t* ordinal) {
  Device* found;
  RCUDA_RETURN_IF_CUDA_ERROR(find_device(device, &found));
  *ordinal = found->ordinal;
  return Route{found->session, 0, static_cast<uint32_t>(device)};
}

CudaResult<Route> find_any_route() {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  return any_route();
}

Route any_route() {
  if (const auto current = find_current_route()) return *current;
  return {Process::get().sessions().front().get(), wire::primary_context_id(0), 0};
}

Route route_of(const Identity& object) { return {object.session, object.context, object.device}; }

Route route_of(const Allocation& memory) { return {memory.session, memory.context, memory.device}; }

Route route_of_graph(const Object& object) {
  const auto current = find_current_route();
  return current && current->session == object.session ? *current : route_of(object);
}

int client_ordinal(const Route& route, uint32_t worker_ordinal) {
  return static_cast<int>(Process::get().ordinal_of(*route.session, worker_ordinal));
}

InContext::InContext(const Route& route) { push_context(context_of(route)); }

InContext::~InContext() { (void)pop_context(); }

CUresult find_live(const void* handle, wire::Kind kind, const Object** object) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  *object = find_object(handle, kind);
  if (!*object) return CUDA_ERROR_INVALID_HANDLE;
  const bool is_over =
      kind == wire::Kind::kContext && static_cast<const Context*>(*object)->given_back;
  return is_over ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

CUresult mint(const Route& route, wire::Kind kind, void** handle, wire::ObjectId* id) {
  *id = route.session->ids().mint(kind);
  if (*id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  Object* object =
      create_object(kind, {*id, home_of(route, kind, *id), route.session, route.device});
  if (!object) {
    route.session->ids().release(kind, *id);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  remember_named(object);
  *handle = object;
  return CUDA_SUCCESS;
}

void* wrap_id(const Route& route, wire::Kind kind, wire::ObjectId id) {
  if (id == 0) return nullptr;
  return named(kind, {id, home_of(route, kind, id), route.session, route.device});
}

void retire(const void* handle, wire::Kind kind) {
  Object* object = find_object(handle, kind);
  if (!object) return;
  Session* session = object->session;
  const wire::ObjectId id = object->id;
  forget(object);
  session->ids().release(kind, id);
}

RetiredEarly::~RetiredEarly() {
  for (const TakenId& taken : taken_) taken.session->ids().release(taken.kind, taken.id);
}

void RetiredEarly::add(Object* object) {
  taken_.push_back({object->session, object->kind, object->id});
  forget(object);
}

CUresult await_idle(Session& session, wire::ObjectId context) {
  return any_capture() ? CUDA_SUCCESS : synchronize_with_greens(session, context);
}

CUresult synchronize_with_greens(Session& session, wire::ObjectId context) {
  RCUDA_RETURN_IF_CUDA_ERROR(synchronize_context(session, context));
  std::vector<wire::ObjectId> greens;
  select<Context>([&](Context& other) {
    if (other.green && other.session == &session && owning_context(other).id == context) {
      greens.push_back(other.id);
    }
    return false;
  });
  for (const wire::ObjectId green : greens) {
    RCUDA_RETURN_IF_CUDA_ERROR(synchronize_context(session, green));
  }
  return CUDA_SUCCESS;
}

wire::ObjectId owning_context_id(const Route& route) {
  return owning_context(*context_of(route)).id;
}

CUresult post(const Route& route, const wire::Command& command, bool* refused) {
  const CUresult result = route.session->post(route, command);
  if (refused) *refused = result != CUDA_SUCCESS;
  return result == CUDA_SUCCESS ? route.session->take_error() : result;
}

CUresult malformed_reply(const Route& route, uint16_t opcode) {
  RCUDA_ERROR(
      "%s sent a malformed reply to %s: the call returns CUDA_ERROR_UNKNOWN; install the same "
      "build of rcuda on both sides",
      route.session->name().c_str(), api::opcode_name(opcode));
  return CUDA_ERROR_UNKNOWN;
}

CUresult call(const Route& route, const wire::Command& command, size_t reply_bytes, Reply* reply) {
  return route.session->call(route, command, reply_bytes, reply);
}

}  // namespace rcuda::client
