#include "client/route/route.h"

#include "api/opcodes.h"
#include "client/objects/kinds.h"
#include "client/objects/named.h"
#include "client/process/process.h"
#include "client/route/capture.h"
#include "client/route/default_streams.h"
#include "client/session/session.h"
#include "client/session/timeline.h"
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

CUresult resolve_stream(const void* handle, Target* target, wire::ObjectId* id, bool used) {
  const bool per_thread =
      handle == CU_STREAM_PER_THREAD || (!handle && interop::per_thread_default_stream());
  Stream* stream = nullptr;
  if (per_thread || !handle || handle == CU_STREAM_LEGACY) {
    Context* context;
    RCUDA_RETURN_IF_CUDA_ERROR(find_current(&context));
    // A driver has no per-thread default stream in a green context (580 on an H100).
    if (per_thread && context->green) return CUDA_ERROR_INVALID_HANDLE;
    if (!target->session) *target = target_of(*context);
    if (!per_thread) {
      *id = 0;
      const bool is_owners =
          target->session == context->session && target->context == owning_context(*context).id;
      if (is_owners) target->context = context->id;  // the owner of the default stream
      const bool is_its = target->session == context->session && target->context == context->id;
      target->timeline = is_its ? context->timeline.get() : nullptr;
      target->stream = nullptr;
      const CUresult result = check_legacy_stream();
      if (used && is_its && result == CUDA_SUCCESS) target->timeline->pace();
      return result;
    }
    RCUDA_RETURN_IF_CUDA_ERROR(per_thread_stream(*context, &stream));
  } else {
    stream = find<Stream>(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (!target->session) *target = target_of(*stream);
  }
  if (target->session != stream->session) return CUDA_ERROR_INVALID_HANDLE;
  target->timeline = stream->timeline.get();
  target->stream = stream;
  *id = stream->id;
  if (used) target->timeline->pace();
  return CUDA_SUCCESS;
}

// The context of a new object. An object that belongs to no context gets the primary context of its
// device, which always exists.
wire::ObjectId home_of(const Target& target, wire::Kind kind, wire::ObjectId id) {
  switch (kind) {
    case wire::Kind::kContext:
      return id;
    case wire::Kind::kGraph:
    case wire::Kind::kGraphNode:
    case wire::Kind::kMemoryPool:
      return Process::get().device(static_cast<CUdevice>(target.device))->primary->id;
    default:
      return target.context;
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

Target target_of(const Object& object) { return {object.session, object.context, object.device}; }

CUresult target_current(Target* target) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  Context* context;
  RCUDA_RETURN_IF_CUDA_ERROR(find_current(&context));
  *target = target_of(owning_context(*context));
  return CUDA_SUCCESS;
}

CUresult target_for_work(CUstream stream, Target* target) {
  const CUresult result = target_current(target);
  if (result == CUDA_SUCCESS) return result;
  const auto* created = find<Stream>(stream);
  if (!created) return result;
  *target = target_of(*created);
  return CUDA_SUCCESS;
}

CUresult target_of_stream(CUstream stream, Target* target) {
  RCUDA_RETURN_IF_CUDA_ERROR(target_for_work(stream, target));
  if (const auto* created = find<Stream>(stream)) *target = target_of(*created);
  return CUDA_SUCCESS;
}

CUresult target_for_copy(CUstream stream, Target* target) {
  const CUresult result = target_current(target);
  return result == CUDA_ERROR_INVALID_CONTEXT ? target_for_work(stream, target) : result;
}

Target target_anywhere() {
  Target target;
  if (target_current(&target) == CUDA_SUCCESS) return target;
  return {Process::get().sessions().front().get(), wire::primary_context_id(0), 0};
}

CUresult target_device(CUdevice device, Target* target, uint32_t* ordinal) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  const Device* found = Process::get().device(device);
  if (!found) return CUDA_ERROR_INVALID_DEVICE;
  *target = {found->session, 0, static_cast<uint32_t>(device)};
  *ordinal = found->ordinal;
  return CUDA_SUCCESS;
}

int client_ordinal(const Target& target, uint32_t worker_ordinal) {
  return static_cast<int>(Process::get().ordinal_of(*target.session, worker_ordinal));
}

Target target_of_graph(const Object& object) {
  Target current;
  const bool is_there = target_current(&current) == CUDA_SUCCESS;
  return is_there && current.session == object.session ? current : target_of(object);
}

CUresult target_address(CUdeviceptr address, Target* target) {
  Process& process = Process::get();
  RCUDA_RETURN_IF_CUDA_ERROR(process.check());
  if (const auto allocation = process.memory().find(address); allocation && allocation->session) {
    *target = {allocation->session, allocation->context, allocation->device};
    return CUDA_SUCCESS;
  }
  const CUresult result = target_current(target);
  Session* session = process.session_of_address(address);
  if (!session) session = process.memory().reserved_by(address);
  if (!session || (result == CUDA_SUCCESS && session == target->session)) return result;
  *target = {session, wire::primary_context_id(0), process.ordinal_of(*session, 0)};
  return CUDA_SUCCESS;
}

CUresult check_not_destroyed() {
  Target target;
  const CUresult result = target_current(&target);
  return result == CUDA_ERROR_INVALID_CONTEXT ? CUDA_SUCCESS : result;
}

InContext::InContext(const Target& target) { push_context(context_of(target)); }

InContext::~InContext() { (void)pop_context(); }

CUresult resolve(const void* handle, wire::Kind kind, Target* target, wire::ObjectId* id) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (kind == wire::Kind::kStream) return resolve_stream(handle, target, id, true);
  if (!handle) {
    *id = 0;
    return CUDA_SUCCESS;
  }
  const Object* object = find_object(handle, kind);
  if (!object) return CUDA_ERROR_INVALID_HANDLE;
  if (kind == wire::Kind::kContext && static_cast<const Context*>(object)->given_back) {
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  if (!target->session) *target = is_graph(kind) ? target_of_graph(*object) : target_of(*object);
  if (target->session != object->session) return CUDA_ERROR_INVALID_HANDLE;
  *id = object->id;
  return CUDA_SUCCESS;
}

CUresult resolve_for_work(CUstream stream, Target* target, wire::ObjectId* id) {
  RCUDA_RETURN_IF_CUDA_ERROR(target_for_work(stream, target));
  return resolve_stream(stream, target, id, true);
}

CUresult resolve_without_pacing(CUstream stream, Target* target, wire::ObjectId* id) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  return resolve_stream(stream, target, id, false);
}

CUresult mint(const Target& target, wire::Kind kind, void** handle, wire::ObjectId* id) {
  *id = target.session->ids().mint(kind);
  if (*id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  Object* object =
      create_object(kind, {*id, home_of(target, kind, *id), target.session, target.device});
  if (!object) {
    target.session->ids().release(kind, *id);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  remember_named(object);
  *handle = object;
  return CUDA_SUCCESS;
}

void* wrap_id(const Target& target, wire::Kind kind, wire::ObjectId id) {
  if (id == 0) return nullptr;
  return named(kind, {id, home_of(target, kind, id), target.session, target.device});
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
  const CUresult result = session.synchronize_context(context);
  if (result != CUDA_SUCCESS) return result;
  std::vector<wire::ObjectId> greens;
  select<Context>([&](Context& other) {
    if (other.green && other.session == &session && owning_context(other).id == context) {
      greens.push_back(other.id);
    }
    return false;
  });
  for (const wire::ObjectId green : greens) {
    RCUDA_RETURN_IF_CUDA_ERROR(session.synchronize_context(green));
  }
  return CUDA_SUCCESS;
}

wire::ObjectId owning_context_id(const Target& target) {
  return owning_context(*context_of(target)).id;
}

CUresult post(const Target& target, const wire::Command& command) {
  const CUresult result = target.session->post(target, command);
  return result == CUDA_SUCCESS ? target.session->take_error() : result;
}

CUresult malformed_reply(const Target& target, uint16_t opcode) {
  RCUDA_ERROR("%s sent a malformed reply to %s", target.session->name().c_str(),
              api::opcode_name(opcode));
  return CUDA_ERROR_UNKNOWN;
}

CUresult call(const Target& target, const wire::Command& command, size_t reply_bytes,
              Reply* reply) {
  return target.session->call(target, command, reply_bytes, reply);
}

}  // namespace rcuda::client
