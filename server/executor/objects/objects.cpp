#include "server/executor/objects/objects.h"

#include <algorithm>
#include <utility>

#include "common/cuda/return_if_error.h"

namespace rcuda::server {
namespace {

bool belongs_to_no_context(wire::Kind kind) {
  switch (kind) {
    case wire::Kind::kContext:
    case wire::Kind::kLibrary:
    case wire::Kind::kKernel:
    case wire::Kind::kGraph:
    case wire::Kind::kGraphNode:
    case wire::Kind::kMemoryPool:
    case wire::Kind::kAllocation:
      return true;
    default:
      return false;
  }
}

}  // namespace

SessionObjects::SessionObjects(const api::DriverTable& driver,
                               const std::vector<SessionDevice>& devices)
    : driver_(driver) {
  for (const SessionDevice& device : devices) {
    ContextState state;
    state.id = wire::primary_context_id(static_cast<uint32_t>(primaries_.size()));
    state.handle = device.primary;
    state.device = device.device;
    primaries_.push_back(std::move(state));
  }
}

ContextState* SessionObjects::find_context(wire::ObjectId id) {
  if (id == 0) return nullptr;
  if (id <= primaries_.size()) return &primaries_[id - 1];
  auto found = contexts_.find(id);
  return found == contexts_.end() ? nullptr : found->second.get();
}

ContextState* SessionObjects::find_context(CUcontext handle) {
  for (ContextState& context : primaries_) {
    if (context.handle == handle) return &context;
  }
  for (auto& [id, context] : contexts_) {
    if (context->handle == handle) return context.get();
  }
  return nullptr;
}

ContextState* SessionObjects::primary_of(CUdevice device) {
  const auto found =
      std::find_if(primaries_.begin(), primaries_.end(),
                   [&](const ContextState& state) { return state.device == device; });
  return found == primaries_.end() ? nullptr : &*found;
}

CUresult SessionObjects::make_current(wire::ObjectId id) {
  if (id == 0 || (current_ && current_->id == id)) [[likely]]
    return CUDA_SUCCESS;
  ContextState* context = find_context(id);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  RCUDA_RETURN_IF_CUDA_ERROR(driver_.cuCtxSetCurrent(context->handle));
  current_ = context;
  return CUDA_SUCCESS;
}

CUresult SessionObjects::use_stream(wire::ObjectId id, SessionStream* stream) {
  if (id == 0) {
    if (!current_) return CUDA_ERROR_INVALID_CONTEXT;
    *stream = {nullptr, current_, &current_->legacy_stream, 0, kLegacyKey | current_->id};
  } else if (id == wire::kFetchStream) {
    if (!current_) return CUDA_ERROR_INVALID_CONTEXT;
    if (!current_->fetch_stream) {
      const CUresult made = driver_.cuStreamCreate(&current_->fetch_stream, CU_STREAM_NON_BLOCKING);
      if (made != CUDA_SUCCESS) return made;
    }
    *stream = {current_->fetch_stream, current_, &current_->fetch_uses, 0,
               kFetchKey | current_->id};
  } else {
    Object* object = of(wire::Kind::kStream).find(id);
    if (!object) return CUDA_ERROR_INVALID_HANDLE;
    ContextState* context = find_context(object->context);
    if (!context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *stream = {static_cast<CUstream>(object->handle), context, object, id, object->key};
  }
  stream->object->last_use = ++uses_;
  return CUDA_SUCCESS;
}

CUresult SessionObjects::find_handle(wire::Kind kind, wire::ObjectId id, void** handle) {
  *handle = nullptr;
  if (kind == wire::Kind::kStream) {
    if (id == 0 && !current_) return CUDA_SUCCESS;
    SessionStream stream;
    const CUresult result = use_stream(id, &stream);
    *handle = stream.handle;
    return result;
  }
  if (id == 0) return CUDA_SUCCESS;
  if (kind == wire::Kind::kContext) {
    ContextState* context = find_context(id);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    *handle = context->handle;
    return CUDA_SUCCESS;
  }
  if (static_cast<size_t>(kind) >= tables_.size()) return CUDA_ERROR_INVALID_HANDLE;
  const Object* object = of(kind).find(id);
  if (!object) return CUDA_ERROR_INVALID_HANDLE;
  *handle = object->handle;
  return CUDA_SUCCESS;
}

bool SessionObjects::bind(wire::Kind kind, wire::ObjectId id, void* handle) {
  if (static_cast<size_t>(kind) >= tables_.size()) return false;
  if (kind == wire::Kind::kContext) {
    if (id < wire::kFirstCreatedContext || !of(kind).bind(id, handle, id)) return false;
    auto state = std::make_unique<ContextState>();
    state->id = id;
    state->handle = static_cast<CUcontext>(handle);
    if (driver_.cuCtxPushCurrent_v2(state->handle) == CUDA_SUCCESS) {
      CUcontext popped = nullptr;
      (void)driver_.cuCtxGetDevice(&state->device);
      (void)driver_.cuCtxPopCurrent_v2(&popped);
    }
    contexts_[id] = std::move(state);
    forget_current();  // creating a context makes it current
    return true;
  }
  if (!of(kind).bind(id, handle, current_ ? current_->id : 0)) return false;
  if (kind == wire::Kind::kStream) of(kind).find(id)->key = next_key_++;
  return true;
}

void SessionObjects::unbind(wire::Kind kind, wire::ObjectId id) {
  if (static_cast<size_t>(kind) >= tables_.size()) return;
  if (kind == wire::Kind::kContext && contexts_.erase(id) == 0) return;
  of(kind).unbind(id);
}

void SessionObjects::forget_objects_of(ContextState& context) {
  ++context.generation;
  context.free_events.clear();
  context.free_streams.clear();
  context.idle_stream = nullptr;
  context.fetch_stream = nullptr;
  context.mirrors_sent = nullptr;
  context.block_digests = nullptr;
  for (size_t kind = 0; kind < tables_.size(); ++kind) {
    if (belongs_to_no_context(static_cast<wire::Kind>(kind))) continue;
    std::vector<wire::ObjectId> gone;
    tables_[kind].for_each([&](wire::ObjectId id, const Object& object) {
      if (object.context == context.id) gone.push_back(id);
    });
    for (wire::ObjectId id : gone) tables_[kind].unbind(id);
  }
  forget_current();
}

}  // namespace rcuda::server
