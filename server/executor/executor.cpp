#include "server/executor/executor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "api/server_handlers.h"
#include "common/base/log.h"
#include "common/cuda/errors.h"
#include "server/executor/gpu_direct.h"
#include "server/executor/graph_copies.h"
#include "server/executor/graph_keeper.h"
#include "server/executor/host_callbacks.h"
#include "server/executor/host_memory.h"
#include "server/executor/image_store.h"
#include "server/executor/mirrors.h"
#include "server/executor/output_capture.h"
#include "server/executor/peers.h"
#include "server/executor/shadow_copy.h"
#include "server/executor/shared_allocations.h"

namespace rcuda::server {

Executor::Executor(const SessionResources& resources)
    : resources_(resources),
      words_(*resources.link),
      events_(*resources.link),
      completions_(*this),
      host_callbacks_(std::make_unique<HostCallbacks>(*this)),
      graph_keeper_(std::make_unique<GraphKeeper>(*this)),
      host_memory_(std::make_unique<HostMemory>(*this)),
      mirrors_(std::make_unique<Mirrors>(*this)),
      shadow_copies_(std::make_unique<ShadowCopies>(*this)),
      gpu_direct_(std::make_unique<GpuDirect>(*this)),
      graph_copies_(std::make_unique<GraphCopies>(*this)),
      shared_allocations_(std::make_unique<SharedAllocations>()),
      images_(std::make_unique<ImageStore>(resources.images)),
      peers_(make_peers(*this)) {
  for (const SessionDevice& device : resources.devices) {
    ContextState state;
    state.id = wire::primary_context_id(static_cast<uint32_t>(primaries_.size()));
    state.handle = device.primary;
    state.device = device.device;
    primaries_.push_back(std::move(state));
  }
}

Executor::~Executor() = default;

// ---- contexts ----------------------------------------------------------------------------------

ContextState* Executor::find_context(wire::ObjectId id) {
  if (id == 0) return nullptr;
  if (id <= primaries_.size()) return &primaries_[id - 1];
  auto found = contexts_.find(id);
  return found == contexts_.end() ? nullptr : found->second.get();
}

ContextState* Executor::find_context(CUcontext handle) {
  for (ContextState& context : primaries_) {
    if (context.handle == handle) return &context;
  }
  for (auto& [id, context] : contexts_) {
    if (context->handle == handle) return context.get();
  }
  return nullptr;
}

CUresult Executor::make_current(wire::ObjectId id) {
  if (id == 0 || (current_ && current_->id == id)) [[likely]]
    return CUDA_SUCCESS;
  ContextState* context = find_context(id);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (CUresult result = driver().cuCtxSetCurrent(context->handle); result != CUDA_SUCCESS) {
    return result;
  }
  current_ = context;
  return CUDA_SUCCESS;
}

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

void Executor::forget_objects(ContextState& context) {
  completions_.drop_context(context, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  peers_->forget_context(context.handle);
  context.free_events.clear();
  context.free_streams.clear();
  context.idle_stream = nullptr;
  context.fetch_stream = nullptr;
  for (size_t kind = 0; kind < objects_.size(); ++kind) {
    if (belongs_to_no_context(static_cast<wire::Kind>(kind))) continue;
    std::vector<wire::ObjectId> gone;
    objects_[kind].for_each([&](wire::ObjectId id, const Object& object) {
      if (object.context == context.id) gone.push_back(id);
    });
    for (wire::ObjectId id : gone) objects_[kind].unbind(id);
  }
  forget_current();
}

CUresult Executor::reset_primary(CUdevice device) {
  auto context = std::find_if(primaries_.begin(), primaries_.end(),
                              [&](const ContextState& state) { return state.device == device; });
  if (context == primaries_.end()) return CUDA_ERROR_INVALID_DEVICE;
  forget_objects(*context);
  // Its streams are in the primary contexts. The client introduces the workers anew.
  peers_->shut();
  if (CUresult result = driver().cuDevicePrimaryCtxReset_v2(device); result != CUDA_SUCCESS) {
    return result;
  }
  if (resources_.output) resources_.output->drain();  // a driver prints what is left
  // The worker goes on using the context: it holds it for the session, and its page-locked memory
  // may have gone with the old one.
  driver().cuDevicePrimaryCtxRelease_v2(device);
  if (CUresult result = driver().cuDevicePrimaryCtxRetain(&context->handle, device);
      result != CUDA_SUCCESS) {
    return result;
  }
  if (CUresult result = make_current(context->id); result != CUDA_SUCCESS) return result;
  {
    std::lock_guard lock(errors_mutex_);
    if (sticky_ != CUDA_SUCCESS) publish_error(CUDA_SUCCESS);
    sticky_ = CUDA_SUCCESS;
  }
  host_memory_->lock_again();
  unsigned flags = 0;
  if (driver().cuMemHostGetFlags(&flags, resources_.staging) == CUDA_SUCCESS) return CUDA_SUCCESS;
  return driver().cuMemHostRegister_v2(resources_.staging, resources_.pinned_bytes,
                                       CU_MEMHOSTREGISTER_PORTABLE);
}

// ---- objects -----------------------------------------------------------------------------------

CUresult Executor::find_stream(wire::ObjectId id, StreamRef* stream) {
  if (id == 0) {
    if (!current_) return CUDA_ERROR_INVALID_CONTEXT;
    *stream = {nullptr, current_, &current_->legacy_stream, 0, kLegacyKey | current_->id};
  } else {
    Object* object = objects(wire::Kind::kStream).find(id);
    if (!object) return CUDA_ERROR_INVALID_HANDLE;
    ContextState* context = find_context(object->context);
    if (!context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *stream = {static_cast<CUstream>(object->handle), context, object, id, object->key};
  }
  stream->object->last_use = ++uses_;
  return CUDA_SUCCESS;
}

std::vector<StreamRef> Executor::busy_streams(ContextState& context) {
  // The legacy stream always counts: functions without a stream parameter use it unseen.
  std::vector<StreamRef> streams = {
      {nullptr, &context, &context.legacy_stream, 0, kLegacyKey | context.id}};
  objects(wire::Kind::kStream).for_each([&](wire::ObjectId id, Object& object) {
    if (object.context == context.id && object.last_use > object.done_use) {
      streams.push_back({static_cast<CUstream>(object.handle), &context, &object, id, object.key});
    }
  });
  return streams;
}

void Executor::stream_departs(CUstream handle) {
  StreamRef stream;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (find_stream(objects(wire::Kind::kStream).id_of(handle), &stream) != CUDA_SUCCESS ||
      !stream.id || !driver().cuStreamIsCapturing ||
      driver().cuStreamIsCapturing(handle, &status) != CUDA_SUCCESS ||
      status != CU_STREAM_CAPTURE_STATUS_NONE ||
      driver().cuStreamQuery(handle) != CUDA_ERROR_NOT_READY) {
    return;
  }
  (void)any_departed(*stream.context);
  auto departed = std::make_shared<Departed>();
  stream.context->departed.push_back(departed);
  completions_.add(stream, [departed](CUresult result) {
    departed->done = true;
    for (const WhenDone& waiter : std::exchange(departed->waiters, {})) waiter(result);
  });
}

// Whether destroyed streams of the context have work under way; forgets those that have not.
bool Executor::any_departed(ContextState& context) {
  std::erase_if(context.departed, [](const auto& departed) { return departed->done; });
  return !context.departed.empty();
}

// One that captures is not asked, which would end the capture.
CUresult Executor::query(const StreamRef& stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!driver().cuStreamIsCapturing) return CUDA_ERROR_NOT_SUPPORTED;
  const CUresult result = driver().cuStreamIsCapturing(stream.handle, &status);
  if (result != CUDA_SUCCESS) return result;
  if (status != CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return driver().cuStreamQuery(stream.handle);
}

size_t Executor::busy_streams(CUdevice device, bool ask) {
  size_t busy = 0;
  const auto count = [&](ContextState& context) {
    if (context.device != device) return;
    const std::vector<StreamRef> streams = busy_streams(context);
    if (context.legacy_stream.last_use > context.legacy_stream.done_use) ++busy;
    for (auto stream = streams.begin() + 1; stream != streams.end(); ++stream) {
      const CUresult result = ask ? query(*stream) : CUDA_ERROR_NOT_READY;
      if (result == CUDA_SUCCESS) stream->object->done_use = stream->object->last_use;
      if (result == CUDA_ERROR_NOT_READY) ++busy;
    }
    if (any_departed(context)) busy += context.departed.size();
  };
  for (ContextState& context : primaries_) count(context);
  for (auto& [id, context] : contexts_) count(*context);
  return busy;
}

bool Executor::known_idle(ContextState& context) {
  constexpr size_t kMostAsked = 4;
  // Asking the driver takes longer than anything else on the way of a small command.
  if (context.idle_at == work_) return true;
  ContextState* const before = current_;
  const std::vector<StreamRef> streams = busy_streams(context);
  if (streams.size() > 1 + kMostAsked || any_departed(context) ||
      make_current(context.id) != CUDA_SUCCESS) {
    return false;
  }
  // The legacy stream is not asked while another captures, which would end the capture.
  bool idle = std::all_of(streams.begin() + 1, streams.end(), [this](const StreamRef& stream) {
    return query(stream) == CUDA_SUCCESS;
  });
  idle = idle && driver().cuStreamQuery(nullptr) == CUDA_SUCCESS;
  if (idle) {
    for (const StreamRef& stream : streams) stream.object->done_use = stream.object->last_use;
    context.idle_at = work_;
  }
  if (before) make_current(before->id);
  return idle;
}

bool Executor::known_idle() {
  return std::all_of(primaries_.begin(), primaries_.end(),
                     [this](ContextState& context) { return known_idle(context); }) &&
         std::all_of(contexts_.begin(), contexts_.end(),
                     [this](auto& entry) { return known_idle(*entry.second); });
}

void Executor::when_idle(ContextState& context, WhenDone when_done) {
  const std::vector<StreamRef> streams = busy_streams(context);
  // After calls that waited themselves nothing is left to wait for: no event needs to travel
  // through the GPU to tell. Where something is, asking first would only delay it.
  const Object& legacy = context.legacy_stream;
  if (streams.size() == 1 && legacy.last_use <= legacy.done_use && known_idle(context)) {
    return when_done(CUDA_SUCCESS);
  }
  if (driver().cuStreamIsCapturing) {
    // An event recorded on a stream in capture would become part of the graph.
    for (const StreamRef& stream : streams) {
      CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
      CUresult result = driver().cuStreamIsCapturing(stream.handle, &status);
      if (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE) {
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
      }
      if (result != CUDA_SUCCESS) return when_done(result);
    }
  }
  struct Outstanding {
    size_t streams;
    CUresult result;
    WhenDone when_done;
  };
  (void)any_departed(context);
  note_work();  // no later copy may join a hold that these events are behind
  auto outstanding = std::make_shared<Outstanding>(
      Outstanding{streams.size() + context.departed.size(), CUDA_SUCCESS, std::move(when_done)});
  const auto one_is_done = [outstanding](CUresult result) {
    if (outstanding->result == CUDA_SUCCESS) outstanding->result = result;
    if (--outstanding->streams == 0) outstanding->when_done(outstanding->result);
  };
  for (const auto& departed : context.departed) departed->waiters.push_back(one_is_done);
  for (const StreamRef& stream : streams) completions_.add(stream, one_is_done);
}

CUresult Executor::lookup(wire::Kind kind, wire::ObjectId id, void** handle) {
  *handle = nullptr;
  if (kind == wire::Kind::kStream) {
    if (id == 0 && !current_) return CUDA_SUCCESS;
    StreamRef stream;
    const CUresult result = find_stream(id, &stream);
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
  if (static_cast<size_t>(kind) >= objects_.size()) return CUDA_ERROR_INVALID_HANDLE;
  Object* object = objects(kind).find(id);
  if (!object) return CUDA_ERROR_INVALID_HANDLE;
  *handle = object->handle;
  if (object->watched) completions_.move_watches(id);
  return CUDA_SUCCESS;
}

bool Executor::bind(wire::Kind kind, wire::ObjectId id, void* handle) {
  if (static_cast<size_t>(kind) >= objects_.size()) return false;
  if (kind == wire::Kind::kContext) {
    if (id < wire::kFirstCreatedContext || !objects(kind).bind(id, handle, id)) return false;
    auto state = std::make_unique<ContextState>();
    state->id = id;
    state->handle = static_cast<CUcontext>(handle);
    if (driver().cuCtxPushCurrent_v2(state->handle) == CUDA_SUCCESS) {
      CUcontext popped = nullptr;
      (void)driver().cuCtxGetDevice(&state->device);
      (void)driver().cuCtxPopCurrent_v2(&popped);
    }
    contexts_[id] = std::move(state);
    forget_current();  // creating a context makes it current
    return true;
  }
  if (!objects(kind).bind(id, handle, current_ ? current_->id : 0)) return false;
  if (kind == wire::Kind::kStream) objects(kind).find(id)->key = next_key_++;
  return true;
}

void Executor::unbind(wire::Kind kind, wire::ObjectId id) {
  if (static_cast<size_t>(kind) >= objects_.size()) return;
  if (kind == wire::Kind::kContext) {
    auto found = contexts_.find(id);
    if (found == contexts_.end()) return;
    contexts_.erase(found);
  }
  if (kind == wire::Kind::kModule || kind == wire::Kind::kLibrary) images_->release(kind, id);
  if (kind == wire::Kind::kStream) {
    if (const Object* stream = objects(kind).find(id)) completions_.forget_stream(stream->key);
  }
  if (kind == wire::Kind::kEvent) {
    if (const Object* event = objects(kind).find(id)) {
      completions_.forget_event(static_cast<CUevent>(event->handle));
    }
  }
  objects(kind).unbind(id);
}

// ---- answers -----------------------------------------------------------------------------------

void Executor::signal(WordSignal signal, CUresult result, transport::Wake wake) {
  if (cuda::is_sticky(result)) latch(result);
  words_.signal(signal, result, wake);
}

void Executor::reply(const ReplyTarget& target, CUresult result, std::span<const std::byte> body) {
  if (cuda::is_sticky(result)) latch(result);
  if (body.size() > target.capacity()) {
    RCUDA_DEBUG("a reply of %zu bytes does not fit its slot", body.size());
    body = {};
    if (result == CUDA_SUCCESS) result = CUDA_ERROR_INVALID_VALUE;
  }
  const wire::ReplyHeader header{static_cast<uint32_t>(result), events_.outputs()};
  const auto bytes = static_cast<uint32_t>(sizeof header + body.size());
  const uint32_t padded = (bytes + 7) & ~7u;
  const uint64_t stamp = wire::ReplyStamp::make(target.call, bytes);
  constexpr std::byte kZeros[8] = {};
  const transport::Bytes pieces[] = {std::as_bytes(std::span(&header, 1)), body,
                                     transport::Bytes(kZeros, padded - bytes),
                                     std::as_bytes(std::span(&stamp, 1))};
  (void)link().put(uint64_t{target.slot} + target.slot_bytes - sizeof stamp - padded, pieces,
                   transport::Wake::kNow);
}

void Executor::latch(CUresult error) {
  std::lock_guard lock(errors_mutex_);
  if (sticky_ != CUDA_SUCCESS) return;
  if (cuda::is_sticky(error)) {
    sticky_ = error;
    RCUDA_INFO("the session's context is lost: CUDA error %d", static_cast<int>(error));
  }
  publish_error(error);
}

void Executor::publish_error(CUresult error) {
  const uint64_t value = wire::CompletionWord::make(++errors_, static_cast<uint32_t>(error));
  (void)link().put(wire::ClientWindow::kErrorWord, std::as_bytes(std::span(&value, 1)), {},
                   transport::Wake::kNo);
}

void Executor::post(std::function<void()> job) {
  {
    std::lock_guard lock(posted_mutex_);
    posted_.push_back(std::move(job));
  }
  has_posted_ = true;
  link().interrupt();
}

bool Executor::run_posted() {
  if (!has_posted_.load(std::memory_order_relaxed)) return false;
  std::vector<std::function<void()>> jobs;
  {
    std::lock_guard lock(posted_mutex_);
    has_posted_ = false;
    jobs.swap(posted_);
  }
  note_work();
  for (const auto& job : jobs) job();
  return true;
}

void Executor::flush_output(ContextState& context) {
  if (!resources_.output || !may_print_) return;
  // The driver passes on what kernels printed when something synchronises. All that must be seen is
  // done already, so an idle stream serves, and this never waits.
  ContextState* const before = current_;
  if (make_current(context.id) == CUDA_SUCCESS) {
    if (!context.idle_stream) {
      driver().cuStreamCreate(&context.idle_stream, CU_STREAM_NON_BLOCKING);
    }
    if (context.idle_stream) driver().cuStreamSynchronize(context.idle_stream);
  }
  if (before) make_current(before->id);
  resources_.output->drain();
}

// ---- dispatch.h --------------------------------------------------------------------------------

CUresult lookup(Executor& executor, wire::Kind kind, wire::ObjectId id, void** handle) {
  return executor.lookup(kind, id, handle);
}

bool bind(Executor& executor, wire::Kind kind, wire::ObjectId id, void* handle) {
  return executor.bind(kind, id, handle);
}

wire::ObjectId name(Executor& executor, wire::Kind kind, void* handle) {
  if (kind == wire::Kind::kContext) {
    if (ContextState* known = executor.find_context(static_cast<CUcontext>(handle))) {
      return known->id;
    }
  }
  if (static_cast<size_t>(kind) >= static_cast<size_t>(wire::Kind::kCount)) return 0;
  ContextState* context = executor.current_context();
  return executor.objects(kind).name(handle, context ? context->id : 0);
}

void unbind(Executor& executor, wire::Kind kind, wire::ObjectId id) { executor.unbind(kind, id); }

CUresult lookup_device(Executor& executor, uint32_t ordinal, CUdevice* device) {
  const auto& devices = executor.resources().devices;
  if (ordinal >= devices.size()) return CUDA_ERROR_INVALID_DEVICE;
  *device = devices[ordinal].device;
  return CUDA_SUCCESS;
}

int32_t device_ordinal(Executor& executor, CUdevice device) {
  const auto& devices = executor.resources().devices;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].device == device) return static_cast<int32_t>(i);
  }
  return -1;
}

HostFunction host_function(Executor& executor, uint64_t callback) {
  return executor.host_callbacks().make(callback);
}

const api::DriverTable& driver(Executor& executor) { return executor.driver(); }

uint32_t keep_blob(Executor& executor, Blob blob) { return executor.blobs().keep(std::move(blob)); }

// ---- handwritten handlers about contexts (api/table/context.toml)
// --------------------------------

CUresult serve_cuCtxDestroy_v2(Executor& executor, CUcontext ctx) {
  // Before the driver does it: afterwards the context's events may no longer be asked for.
  if (ContextState* context = executor.find_context(ctx)) executor.forget_objects(*context);
  const CUresult result = executor.driver().cuCtxDestroy_v2(ctx);
  // The application may have had it lock memory for other sessions' contexts.
  if (executor.make_current(wire::primary_context_id(0)) == CUDA_SUCCESS) {
    executor.host_memory().lock_again();
  }
  return result;
}

CUresult serve_cuDevicePrimaryCtxReset_v2(Executor& executor, CUdevice dev) {
  return executor.reset_primary(dev);
}

}  // namespace rcuda::server
