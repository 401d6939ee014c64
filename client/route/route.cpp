#include "client/route/route.h"

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

// Returns the calling thread's current context, or an error if there is none or it is destroyed.
CUresult find_current(Context** context) {
  const Ref<Context> current = current_context();
  if (!current.handle()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = current.get();
  return *context && !(*context)->given_back.load(std::memory_order_acquire)
             ? CUDA_SUCCESS
             : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult resolve_stream(const void* handle, Route* route, wire::ObjectId* id, bool used) {
  const bool per_thread =
      handle == CU_STREAM_PER_THREAD || (!handle && interop::per_thread_default_stream());
  Stream* stream = nullptr;
  if (per_thread || !handle || handle == CU_STREAM_LEGACY) {
    Context* context;
    RCUDA_RETURN_IF_CUDA_ERROR(find_current(&context));
    // A driver has no per-thread default stream in a green context (580 on an H100).
    if (per_thread && context->green) return CUDA_ERROR_INVALID_HANDLE;
    if (!route->session) *route = target_of(*context);
    if (!per_thread) {
      *id = 0;
      const bool is_owners =
          route->session == context->session && route->context == owning_context(*context).id;
      if (is_owners) route->context = context->id;  // the owner of the default stream
      const bool is_its = route->session == context->session && route->context == context->id;
      route->timeline = is_its ? context->timeline.get() : nullptr;
      route->stream = nullptr;
      const CUresult result = check_legacy_stream();
      if (used && is_its && result == CUDA_SUCCESS) route->timeline->pace();
      return result;
    }
    RCUDA_RETURN_IF_CUDA_ERROR(per_thread_stream(*context, &stream));
  } else {
    stream = find<Stream>(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (!route->session) *route = target_of(*stream);
  }
  if (route->session != stream->session) return CUDA_ERROR_INVALID_HANDLE;
  route->timeline = stream->timeline.get();
  route->stream = stream;
  *id = stream->id;
  if (used) route->timeline->pace();
  return CUDA_SUCCESS;
}

// The context of a new object. An object that belongs to no context gets the primary context of its
// device, which always exists.
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

bool is_graph(wire::Kind kind) {
  return kind == wire::Kind::kGraph || kind == wire::Kind::kGraphNode ||
         kind == wire::Kind::kGraphExec;
}

// Destroys the object but keeps its id in use.
void forget(Object* object) {
  forget_named(*object);
  destroy_object(object);
}

}  // namespace

Route target_of(const Object& object) { return {object.session, object.context, object.device}; }

CUresult target_current(Route* route) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  Context* context;
  RCUDA_RETURN_IF_CUDA_ERROR(find_current(&context));
  *route = target_of(owning_context(*context));
  return CUDA_SUCCESS;
}

CUresult target_for_work(CUstream stream, Route* route) {
  const CUresult result = target_current(route);
  if (result == CUDA_SUCCESS) return result;
  const auto* created = find<Stream>(stream);
  if (!created) return result;
  *route = target_of(*created);
  return CUDA_SUCCESS;
}

CUresult target_of_stream(CUstream stream, Route* route) {
  RCUDA_RETURN_IF_CUDA_ERROR(target_for_work(stream, route));
  if (const auto* created = find<Stream>(stream)) *route = target_of(*created);
  return CUDA_SUCCESS;
}

CUresult target_for_copy(CUstream stream, Route* route) {
  const CUresult result = target_current(route);
  return result == CUDA_ERROR_INVALID_CONTEXT ? target_for_work(stream, route) : result;
}

Route target_anywhere() {
  Route route;
  if (target_current(&route) == CUDA_SUCCESS) return route;
  return {Process::get().sessions().front().get(), wire::primary_context_id(0), 0};
}

CUresult target_device(CUdevice device, Route* route, uint32_t* ordinal) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  const Device* found = Process::get().device(device);
  if (!found) return CUDA_ERROR_INVALID_DEVICE;
  *route = {found->session, 0, static_cast<uint32_t>(device)};
  *ordinal = found->ordinal;
  return CUDA_SUCCESS;
}

int client_ordinal(const Route& route, uint32_t worker_ordinal) {
  return static_cast<int>(Process::get().ordinal_of(*route.session, worker_ordinal));
}

Route target_of_graph(const Object& object) {
  Route current;
  const bool is_there = target_current(&current) == CUDA_SUCCESS;
  return is_there && current.session == object.session ? current : target_of(object);
}

CUresult target_address(CUdeviceptr address, Route* route) {
  Process& process = Process::get();
  RCUDA_RETURN_IF_CUDA_ERROR(process.check());
  if (const auto allocation = process.memory().find(address); allocation && allocation->session) {
    *route = {allocation->session, allocation->context, allocation->device};
    return CUDA_SUCCESS;
  }
  const CUresult result = target_current(route);
  Session* session = process.session_of_address(address);
  if (!session) session = process.memory().reserved_by(address);
  if (!session || (result == CUDA_SUCCESS && session == route->session)) return result;
  *route = {session, wire::primary_context_id(0), process.ordinal_of(*session, 0)};
  return CUDA_SUCCESS;
}

CUresult check_not_destroyed() {
  Route route;
  const CUresult result = target_current(&route);
  return result == CUDA_ERROR_INVALID_CONTEXT ? CUDA_SUCCESS : result;
}

InContext::InContext(const Route& route) { push_context(context_of(route)); }

InContext::~InContext() { (void)pop_context(); }

CUresult resolve(const void* handle, wire::Kind kind, Route* route, wire::ObjectId* id) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (kind == wire::Kind::kStream) return resolve_stream(handle, route, id, true);
  if (!handle) {
    *id = 0;
    return CUDA_SUCCESS;
  }
  const Object* object = find_object(handle, kind);
  if (!object) return CUDA_ERROR_INVALID_HANDLE;
  if (kind == wire::Kind::kContext && static_cast<const Context*>(object)->given_back) {
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  if (!route->session) *route = is_graph(kind) ? target_of_graph(*object) : target_of(*object);
  if (route->session != object->session) return CUDA_ERROR_INVALID_HANDLE;
  *id = object->id;
  return CUDA_SUCCESS;
}

CUresult resolve_for_work(CUstream stream, Route* route, wire::ObjectId* id) {
  RCUDA_RETURN_IF_CUDA_ERROR(target_for_work(stream, route));
  return resolve_stream(stream, route, id, true);
}

CUresult resolve_without_pacing(CUstream stream, Route* route, wire::ObjectId* id) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  return resolve_stream(stream, route, id, false);
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
  const CUresult result = synchronize_context(session, context);
  if (result != CUDA_SUCCESS) return result;
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

CUresult post(const Route& route, const wire::Command& command) {
  const CUresult result = route.session->post(route, command);
  return result == CUDA_SUCCESS ? route.session->take_error() : result;
}

CUresult malformed_reply(const Route& route, uint16_t opcode) {
  RCUDA_ERROR("%s sent a malformed reply to %s", route.session->name().c_str(),
              api::opcode_name(opcode));
  return CUDA_ERROR_UNKNOWN;
}

CUresult call(const Route& route, const wire::Command& command, size_t reply_bytes, Reply* reply) {
  return route.session->call(route, command, reply_bytes, reply);
}

}  // namespace rcuda::client
