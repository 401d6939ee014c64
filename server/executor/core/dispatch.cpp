#include "server/executor/core/dispatch.h"

#include <utility>

#include "server/executor/core/executor.h"

namespace rcuda::server {

CUresult lookup(Executor& executor, wire::Kind kind, wire::ObjectId id, void** handle) {
  if (kind != wire::Kind::kEvent) return executor.objects.find_handle(kind, id, handle);
  CUevent event = nullptr;
  const CUresult result = executor.completions.event_for_command(id, &event);
  *handle = event;
  return result;
}

bool bind(Executor& executor, wire::Kind kind, wire::ObjectId id, void* handle) {
  return executor.objects.bind(kind, id, handle);
}

wire::ObjectId name(Executor& executor, wire::Kind kind, void* handle) {
  SessionObjects& objects = executor.objects;
  if (kind == wire::Kind::kContext) {
    if (ContextState* known = objects.find_context(static_cast<CUcontext>(handle))) {
      return known->id;
    }
  }
  if (static_cast<size_t>(kind) >= static_cast<size_t>(wire::Kind::kCount)) return 0;
  ContextState* context = objects.current_context();
  return objects.of(kind).name(handle, context ? context->id : 0);
}

void unbind(Executor& executor, wire::Kind kind, wire::ObjectId id) {
  SessionObjects& objects = executor.objects;
  if (kind == wire::Kind::kModule || kind == wire::Kind::kLibrary) {
    executor.images.release(kind, id);
  } else if (kind == wire::Kind::kStream) {
    if (const Object* stream = objects.of(kind).find(id)) {
      executor.completions.forget_stream(stream->key);
    }
  } else if (kind == wire::Kind::kEvent) {
    if (const Object* event = objects.of(kind).find(id)) {
      executor.completions.forget_event(static_cast<CUevent>(event->handle));
    }
  }
  objects.unbind(kind, id);
}

CUresult lookup_device(Executor& executor, uint32_t ordinal, CUdevice* device) {
  const auto& devices = executor.resources.devices;
  if (ordinal >= devices.size()) return CUDA_ERROR_INVALID_DEVICE;
  *device = devices[ordinal].device;
  return CUDA_SUCCESS;
}

int32_t device_ordinal(Executor& executor, CUdevice device) {
  const auto& devices = executor.resources.devices;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].device == device) return static_cast<int32_t>(i);
  }
  return -1;
}

HostFunction host_function(Executor& executor, uint64_t callback) {
  return executor.host_callbacks.make(callback);
}

const api::DriverTable& driver(Executor& executor) { return executor.driver; }

uint32_t keep_blob(Executor& executor, Blob blob) { return executor.blobs.keep(std::move(blob)); }

}  // namespace rcuda::server
