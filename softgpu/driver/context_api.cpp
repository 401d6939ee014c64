// cuCtx*, cuDevicePrimaryCtx* and cuGreenCtx*.
#include <memory>
#include <set>
#include <vector>

#include <cuda.h>

#include "common/base/mutex.h"
#include "common/interop/export_tables.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/green.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/pools.h"

using namespace softgpu::driver;

namespace {

// Reference counts and flags of the primary contexts. Retain, release and reset hold the mutex also
// while they start or stop a context.
struct PrimaryState {
  rcuda::Mutex mutex;
  int retained[kMaxDevices] RCUDA_GUARDED_BY(mutex) = {};
  unsigned flags[kMaxDevices] RCUDA_GUARDED_BY(mutex) = {};
};

PrimaryState& primary_state() {
  static auto* instance = new PrimaryState;
  return *instance;
}

bool valid_flags(unsigned flags) {
  const unsigned schedule = flags & CU_CTX_SCHED_MASK;
  return (flags & ~CU_CTX_FLAGS_MASK) == 0 &&
         (schedule == CU_CTX_SCHED_AUTO || schedule == CU_CTX_SCHED_SPIN ||
          schedule == CU_CTX_SCHED_YIELD || schedule == CU_CTX_SCHED_BLOCKING_SYNC);
}

// Flags for features that this driver lacks.
constexpr unsigned kCoredumpFlags = CU_CTX_COREDUMP_ENABLE | CU_CTX_USER_COREDUMP_ENABLE;

std::vector<std::shared_ptr<Context>> greens_of(Context& primary) {
  std::vector<std::shared_ptr<Context>> greens;
  handle_table<Context>().for_each([&](Context& context) {
    if (context.is_green() && &context.owner() == &primary) {
      greens.push_back(context.shared_from_this());
    }
  });
  return greens;
}

CUresult create_context(CUcontext* handle, unsigned flags, CUdevice ordinal) {
  if (CUresult result = check_initialized()) return result;
  if (!handle || !valid_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
  Device* device = device_at(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  auto context = std::make_shared<Context>(*device, /*primary=*/false);
  context->set_flags(flags & ~kCoredumpFlags);
  if (!context->start()) return CUDA_ERROR_OUT_OF_MEMORY;
  handle_table<Context>().insert(context);
  *handle = context->handle();
  push_current_context(std::move(context));
  return CUDA_SUCCESS;
}

CUresult synchronize(Context& context) {
  CUresult result = context.synchronize();
  if (context.is_primary()) {  // also waits for its green contexts
    for (const std::shared_ptr<Context>& green : greens_of(context)) {
      if (const CUresult waited = green->synchronize(); result == CUDA_SUCCESS) result = waited;
    }
  }
  observe_frees(context.device());
  return result;
}

// Waits until the context's device has no work left in any context, as driver 580 does before it
// ends a context (H200). Only the end of the process cuts kernels short. The caller must not hold a
// lock that other threads take.
void wait_to_end(Context& context) {
  if (!context.alive()) return;
  Device& device = context.device();
  std::vector<CUcontext> handles = {device.primary().handle()};
  handle_table<Context>().for_each([&](Context& other) {
    if (&other.device() == &device) handles.push_back(other.handle());
  });
  for (const CUcontext handle : handles) {
    const std::shared_ptr<Context> other = Context::from_handle(handle);
    if (other && other->alive()) other->synchronize();
  }
}

// Handles of destroyed contexts. Calls return CUDA_ERROR_CONTEXT_IS_DESTROYED for them until a new
// context has the address.
struct DestroyedHandles {
  std::mutex mutex;
  std::set<CUcontext> handles;
};
DestroyedHandles& destroyed_handles() {
  static auto* instance = new DestroyedHandles;
  return *instance;
}

CUresult error_of_missing(CUcontext handle) {
  DestroyedHandles& destroyed = destroyed_handles();
  std::lock_guard lock(destroyed.mutex);
  return destroyed.handles.count(handle) ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                         : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult find_green(CUgreenCtx handle, std::shared_ptr<Context>* context) {
  if (CUresult result = check_initialized()) return result;
  *context = Context::from_handle(reinterpret_cast<CUcontext>(handle));
  if (!*context) return error_of_missing(reinterpret_cast<CUcontext>(handle));
  return (*context)->is_green() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

// The current context, even with a sticky error: queries still work after a fault.
CUresult current_alive(Context** context) {
  if (CUresult result = check_initialized()) return result;
  *context = current_context();
  if (!*context) return CUDA_ERROR_INVALID_CONTEXT;
  return (*context)->alive() ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

}  // namespace

namespace softgpu::driver {

CUresult find_context(CUcontext handle, std::shared_ptr<Context>* context) {
  if (CUresult result = check_initialized()) return result;
  *context = handle ? Context::from_handle(handle) : current_context_shared();
  if (!*context) return error_of_missing(handle);
  return (*context)->alive() ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

}  // namespace softgpu::driver

extern "C" {

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice ordinal) {
  if (CUresult result = check_initialized()) return result;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  Device* device = device_at(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  PrimaryState& state = primary_state();
  rcuda::MutexLock lock(state.mutex);
  Context& context = device->primary();
  if (!context.alive()) {
    context.set_flags(state.flags[ordinal] & ~kCoredumpFlags);
    if (!context.start()) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  ++state.retained[ordinal];
  *handle = context.handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
  if (CUresult result = check_initialized()) return result;
  Device* device = device_at(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  PrimaryState& state = primary_state();
  rcuda::MutexLock lock(state.mutex);
  if (state.retained[ordinal] == 1) {
    lock.unlock();
    wait_to_end(device->primary());
    lock.lock();
    if (state.retained[ordinal] == 1) {
      rcuda::interop::context_destroyed(device->primary().handle(), lock);
    }
  }
  if (state.retained[ordinal] == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--state.retained[ordinal] == 0) device->primary().stop();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice ordinal) {
  return cuDevicePrimaryCtxRelease_v2(ordinal);
}

// Releases the context's resources but keeps the reference count: each holder may still call
// release.
CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
  if (CUresult result = check_initialized()) return result;
  Device* device = device_at(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  if (!greens_of(device->primary()).empty()) return CUDA_ERROR_NOT_PERMITTED;
  wait_to_end(device->primary());
  PrimaryState& state = primary_state();
  rcuda::MutexLock lock(state.mutex);
  rcuda::interop::context_destroyed(device->primary().handle(), lock);
  device->primary().stop();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice ordinal) {
  return cuDevicePrimaryCtxReset_v2(ordinal);
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned int flags) {
  if (CUresult result = check_initialized()) return result;
  Device* device = device_at(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  if (!valid_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
  PrimaryState& state = primary_state();
  rcuda::MutexLock lock(state.mutex);
  state.flags[ordinal] = flags;
  if (device->primary().alive()) device->primary().set_flags(flags & ~kCoredumpFlags);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice ordinal, unsigned int flags) {
  if (CUresult result = check_initialized()) return result;
  Device* device = device_at(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  if (device->primary().alive()) return CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE;
  return cuDevicePrimaryCtxSetFlags_v2(ordinal, flags);
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int* flags, int* active) {
  if (CUresult result = check_initialized()) return result;
  Device* device = device_at(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
  PrimaryState& state = primary_state();
  rcuda::MutexLock lock(state.mutex);
  *flags = state.flags[ordinal];
  *active = device->primary().alive();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxCreate_v2(CUcontext* handle, unsigned int flags, CUdevice ordinal) {
  return create_context(handle, flags, ordinal);
}

CUresult CUDAAPI cuCtxCreate_v3(CUcontext* handle, CUexecAffinityParam* parameters, int count,
                                unsigned int flags, CUdevice ordinal) {
  if (CUresult result = check_initialized()) return result;
  if (parameters || count != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return create_context(handle, flags, ordinal);
}

CUresult CUDAAPI cuCtxCreate_v4(CUcontext* handle, CUctxCreateParams* parameters,
                                unsigned int flags, CUdevice ordinal) {
  if (CUresult result = check_initialized()) return result;
  if (parameters && parameters->numExecAffinityParams != 0) {
    return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  }
  if (parameters && parameters->cigParams) return CUDA_ERROR_NOT_SUPPORTED;
  return create_context(handle, flags, ordinal);
}

CUresult CUDAAPI cuCtxDestroy_v2(CUcontext handle) {
  if (CUresult result = check_initialized()) return result;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  // Primary contexts are not in the table: only release and reset end them.
  std::shared_ptr<Context> context = handle_table<Context>().find(handle);
  if (!context) return error_of_missing(handle);
  if (context->is_green()) return CUDA_ERROR_INVALID_CONTEXT;
  wait_to_end(*context);
  context->stop();
  {
    DestroyedHandles& destroyed = destroyed_handles();
    std::lock_guard lock(destroyed.mutex);
    destroyed.handles.insert(handle);
  }
  handle_table<Context>().remove(handle);
  if (current_context() == context.get()) set_current_context(nullptr);
  return CUDA_SUCCESS;
}

// Attaches the current context; for a green context, its primary context. The usage count of a
// primary context has no effect.
CUresult CUDAAPI cuCtxAttach(CUcontext* handle, unsigned int flags) {
  std::shared_ptr<Context> context;
  if (CUresult result = check_initialized()) return result;
  if (CUresult result = find_context(nullptr, &context)) return result;
  if (!handle || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  context->owner().attach();
  *handle = context->owner().handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxDetach(CUcontext handle) {
  if (CUresult result = check_initialized()) return result;
  Context* const context = current_context();
  if (!context || context->handle() != handle || context->is_green()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (!context->alive()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return context->is_primary() || context->detach() ? CUDA_SUCCESS : cuCtxDestroy_v2(handle);
}

CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext handle) {
  if (CUresult result = check_initialized()) return result;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context = Context::from_handle(handle);
  if (!context) return error_of_missing(handle);
  push_current_context(std::move(context));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext* handle) {
  if (CUresult result = check_initialized()) return result;
  Context* context = current_context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (handle) *handle = context->handle();
  set_current_context(nullptr);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext handle) {
  if (CUresult result = check_initialized()) return result;
  if (!handle) {
    set_current_context(nullptr);
    return CUDA_SUCCESS;
  }
  // A primary context may be made current before its first retain; cudart 13 does that.
  std::shared_ptr<Context> context = Context::from_handle(handle);
  if (!context) return error_of_missing(handle);
  set_current_context(std::move(context));
  return CUDA_SUCCESS;
}

// The functions without a version suffix do the same as their versioned successors. Libraries that
// look up symbols by the plain name find them.
CUresult CUDAAPI cuCtxCreate(CUcontext* handle, unsigned int flags, CUdevice ordinal) {
  return cuCtxCreate_v2(handle, flags, ordinal);
}
CUresult CUDAAPI cuCtxDestroy(CUcontext handle) { return cuCtxDestroy_v2(handle); }
CUresult CUDAAPI cuCtxPushCurrent(CUcontext handle) { return cuCtxPushCurrent_v2(handle); }
CUresult CUDAAPI cuCtxPopCurrent(CUcontext* handle) { return cuCtxPopCurrent_v2(handle); }

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* handle) {
  if (CUresult result = check_initialized()) return result;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  Context* context = current_context();
  *handle = context ? context->handle() : nullptr;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice* ordinal) {
  if (CUresult result = check_initialized()) return result;
  Context* context = current_context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive() && !context->is_primary()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (!ordinal) return CUDA_ERROR_INVALID_VALUE;
  *ordinal = context->device().ordinal();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevice_v2(CUdevice* ordinal, CUcontext handle) {
  std::shared_ptr<Context> context;
  if (CUresult result = find_context(handle, &context)) return result;
  if (!ordinal) return CUDA_ERROR_INVALID_VALUE;
  *ordinal = context->device().ordinal();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetFlags(unsigned int* flags) {
  if (CUresult result = check_initialized()) return result;
  const Context* context = current_context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive() && !context->is_primary()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  *flags = context->flags();
  // cudaDeviceMapHost "is implicit in runtime API flags" (documentation of cudaGetDeviceFlags,
  // which calls this function). So a primary context has the flag, though
  // cuDevicePrimaryCtxGetState does not report it.
  if (context->is_primary()) *flags |= CU_CTX_MAP_HOST;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetFlags(unsigned int flags) {
  Context* context = nullptr;
  if (CUresult result = current_alive(&context)) return result;
  if (!valid_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
  context->set_flags(flags & ~kCoredumpFlags);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetId(CUcontext handle, unsigned long long* id) {
  std::shared_ptr<Context> context;
  if (CUresult result = find_context(handle, &context)) return result;
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  *id = context->id();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetApiVersion(CUcontext handle, unsigned int* version) {
  std::shared_ptr<Context> context;
  if (CUresult result = find_context(handle, &context)) {
    // Driver 580 returns this error here, unlike in other calls.
    return result == CUDA_ERROR_CONTEXT_IS_DESTROYED ? CUDA_ERROR_INVALID_CONTEXT : result;
  }
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = 3020;  // for contexts made by cuCtxCreate_v2 or later
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSynchronize(void) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  context = current_context();
  if (CUresult result = refuse_context_wait(*context)) return result;
  if (CUresult result = check_unsafe_call()) return result;
  return synchronize(*context);
}

CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext handle) {
  std::shared_ptr<Context> context;
  if (CUresult result = find_context(handle, &context)) return result;
  if (CUresult result = context->sticky()) return result;
  if (CUresult result = refuse_context_wait(*context)) return result;
  if (CUresult result = check_unsafe_call()) return result;
  return synchronize(*context);
}

CUresult CUDAAPI cuCtxGetLimit(size_t* value, CUlimit limit) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  return context->limit(limit, value);
}

CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  // Driver 580 waits for the context's work before it changes the stack size of all threads (H200).
  if (limit == CU_LIMIT_STACK_SIZE) context->synchronize();
  return context->set_limit(limit, value);
}

CUresult CUDAAPI cuCtxGetCacheConfig(CUfunc_cache* config) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  *config = context->cache_config;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCacheConfig(CUfunc_cache config) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (static_cast<unsigned>(config) > CU_FUNC_CACHE_PREFER_EQUAL) return CUDA_ERROR_INVALID_VALUE;
  context->cache_config = config;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetSharedMemConfig(CUsharedconfig* config) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  *config = context->shared_config;
  return CUDA_SUCCESS;
}

// Banks are four bytes wide since Maxwell; the setting is accepted and ignored, as on hardware.
CUresult CUDAAPI cuCtxSetSharedMemConfig(CUsharedconfig config) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (static_cast<unsigned>(config) > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxResetPersistingL2Cache(void) {
  Context* context = nullptr;
  return enter(&context);
}

CUresult CUDAAPI cuCtxGetExecAffinity(CUexecAffinityParam* affinity, CUexecAffinityType type) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!affinity) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_EXEC_AFFINITY_TYPE_SM_COUNT) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  affinity->type = type;
  affinity->param.smCount.val = static_cast<unsigned>(context->device().multiprocessors());
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peer_handle, unsigned int flags) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!peer_handle) return CUDA_ERROR_INVALID_CONTEXT;
  std::shared_ptr<Context> peer;
  if (CUresult result = find_context(peer_handle, &peer)) return result;
  return context->enable_peer(*peer);
}

CUresult CUDAAPI cuCtxDisablePeerAccess(CUcontext peer_handle) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!peer_handle) return CUDA_ERROR_INVALID_CONTEXT;
  std::shared_ptr<Context> peer;
  if (CUresult result = find_context(peer_handle, &peer)) return result;
  return context->disable_peer(*peer);
}

// ---- green contexts ----------------------------------------------------------------------------

CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx* handle, CUdevResourceDesc desc, CUdevice ordinal,
                                  unsigned int flags) {
  if (CUresult result = check_initialized()) return result;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  Device* device = device_at(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  if (flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
  int multiprocessors = device->multiprocessors();
  if (CUresult result = multiprocessors_of(desc, *device, &multiprocessors)) return result;
  CUcontext primary;
  if (CUresult result = cuDevicePrimaryCtxRetain(&primary, ordinal)) return result;
  auto context = std::make_shared<Context>(device->primary_shared(), multiprocessors);
  context->set_flags(CU_CTX_MAP_HOST);
  (void)context->start();  // needs no memory of its own
  *handle = green_handle(*context);
  handle_table<Context>().insert(std::move(context));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx handle) {
  std::shared_ptr<Context> context;
  if (CUresult result = find_green(handle, &context)) return result;
  context->synchronize();
  context->stop();
  {
    DestroyedHandles& destroyed = destroyed_handles();
    std::lock_guard lock(destroyed.mutex);
    destroyed.handles.insert(context->handle());
  }
  handle_table<Context>().remove(context.get());
  return cuDevicePrimaryCtxRelease_v2(context->device().ordinal());
}

CUresult CUDAAPI cuCtxFromGreenCtx(CUcontext* handle, CUgreenCtx green) {
  std::shared_ptr<Context> context;
  if (CUresult result = find_green(green, &context)) return result;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  *handle = context->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGreenCtxGetId(CUgreenCtx green, unsigned long long* id) {
  std::shared_ptr<Context> context;
  if (CUresult result = find_green(green, &context)) return result;
  return cuCtxGetId(context->handle(), id);
}

CUresult CUDAAPI cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event) {
  std::shared_ptr<Context> context;
  if (CUresult result = find_green(green, &context)) return result;
  return cuCtxRecordEvent(context->handle(), event);
}

CUresult CUDAAPI cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event) {
  std::shared_ptr<Context> context;
  if (CUresult result = find_green(green, &context)) return result;
  return cuCtxWaitEvent(context->handle(), event);
}

CUresult CUDAAPI cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx green, unsigned int flags,
                                        int priority) {
  std::shared_ptr<Context> context;
  if (CUresult result = find_green(green, &context)) return result;
  if (!stream || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  return create_stream_in(*context, stream, flags, priority);
}

CUresult CUDAAPI cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource* resource,
                                          CUdevResourceType type) {
  std::shared_ptr<Context> context;
  if (CUresult result = find_green(green, &context)) return result;
  return cuCtxGetDevResource(context->handle(), resource, type);
}

}  // extern "C"
