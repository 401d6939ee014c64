// Contexts. The contexts themselves are in the workers. The client keeps each thread's stack of
// current contexts, the reference counts of primary contexts, and the contexts' flags.

#include <vector>

#include <cuda.h>
#include <cudaProfiler.h>

#include "client/code/functions.h"
#include "client/hostmem/host_memory.h"
#include "client/mirror/mirror.h"
#include "client/objects/kinds.h"
#include "client/process/process.h"
#include "client/route/capture.h"
#include "client/route/find_route.h"
#include "common/base/mutex.h"
#include "common/cuda/known_values.h"
#include "common/cuda/return_if_error.h"
#include "common/interop/export_tables.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

CUresult check() { return Process::get().check(); }

// Returns the context of a handle, or the current context if the handle is null. The context may be
// a primary context that is not active (given_back).
CUresult context_or_current(CUcontext handle, Context** context) {
  RCUDA_RETURN_IF_CUDA_ERROR(check());
  const Ref<Context> found = handle ? Ref(find<Context>(handle)) : current_context();
  if (!found.handle()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = found.get();  // another thread may have destroyed the current context
  return *context ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult find_alive(CUcontext handle, Context** context) {
  RCUDA_RETURN_IF_CUDA_ERROR(context_or_current(handle, context));
  return (*context)->given_back ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

template <typename T>
void retire_all(const Context& context, RetiredEarly* retired) {
  for (T* object : objects_in<T>(context.session, context.id)) retired->add(object);
}

// Forgets the contents of a context that is about to end: its memory and the handles of its
// objects, which the worker destroys with the context. Returns its host memory, which the caller
// must end after the context.
std::vector<Allocation> forget_context(const Context& context, RetiredEarly* retired) {
  captures_lost(context);
  forget_kernels_in(*context.session, context.id);
  for (Module* module : objects_in<Module>(context.session, context.id)) {
    forget_variables(module->variables);  // ends the mirroring of managed variables
  }
  retire_all<Stream>(context, retired);
  retire_all<Event>(context, retired);
  retire_all<Module>(context, retired);
  retire_all<Function>(context, retired);
  retire_all<Array>(context, retired);
  retire_all<LinkState>(context, retired);
  std::vector<Allocation> host = Process::get().memory().remove_context(context.device, context.id);
  // End the mirroring of the context's managed memory before the worker may reuse the addresses.
  unmirror_context(*context.session, context.id);
  std::erase_if(host, [](const Allocation& memory) { return memory.session != nullptr; });
  return host;
}

void end_all(const std::vector<Allocation>& host) {
  for (const Allocation& memory : host) end_host_memory(memory);
}

// Checks the flags of a context. The scheduling flags exclude one another.
bool valid_flags(unsigned flags) {
  constexpr unsigned kOthers = CU_CTX_MAP_HOST | CU_CTX_LMEM_RESIZE_TO_MAX |
                               CU_CTX_COREDUMP_ENABLE | CU_CTX_USER_COREDUMP_ENABLE |
                               CU_CTX_SYNC_MEMOPS;
  const unsigned schedule = flags & ~kOthers;
  return schedule == CU_CTX_SCHED_AUTO || schedule == CU_CTX_SCHED_SPIN ||
         schedule == CU_CTX_SCHED_YIELD || schedule == CU_CTX_SCHED_BLOCKING_SYNC;
}

// Ends the primary context. The worker makes a new primary context at once.
void end_primary(CUdevice dev, Device& device) RCUDA_REQUIRES(device.mutex) {
  Process::get().peers().forget(*device.session);
  device.primary->given_back.store(true, std::memory_order_release);
  device.primary->limits.forget();
  RetiredEarly retired;
  const std::vector<Allocation> host = forget_context(*device.primary, &retired);
  device.renewed = forward_cuDevicePrimaryCtxReset_v2(dev);
  end_all(host);
}

// Waits until every context of the ending context's device has been idle, as a driver does before
// it ends a context (580 on an H200). Other threads may keep using the device.
void await_device(const Context& ending) {
  if (ending.given_back) return;
  std::vector<wire::ObjectId> contexts;
  select<Context>([&](const Context& context) {
    if (context.session == ending.session && context.device == ending.device &&
        !context.given_back) {
      contexts.push_back(context.id);
    }
    return false;
  });
  for (const wire::ObjectId context : contexts) (void)await_idle(*ending.session, context);
}

std::vector<Context*> greens_of(const Context& primary) {
  return select<Context>([&](const Context& context) {
    return context.green && context.session == primary.session && context.device == primary.device;
  });
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

extern "C" {

// ---- primary contexts --------------------------------------------------------------------------

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice dev) {
  Device* device;
  RCUDA_RETURN_IF_CUDA_ERROR(find_device(dev, &device));
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  if (device->session->lost()) return kSessionLost;
  rcuda::MutexLock lock(device->mutex);
  if (device->renewed != CUDA_SUCCESS) device->renewed = forward_cuDevicePrimaryCtxReset_v2(dev);
  if (device->renewed != CUDA_SUCCESS) return device->renewed;
  ++device->primary_references;
  device->primary->given_back.store(false, std::memory_order_release);
  device->primary->flags = device->primary_flags;
  *context = reinterpret_cast<CUcontext>(device->primary);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  Device* device;
  RCUDA_RETURN_IF_CUDA_ERROR(find_device(dev, &device));
  const auto handle = reinterpret_cast<CUcontext>(device->primary);
  rcuda::MutexLock lock(device->mutex);
  if (device->primary_references == 1) {
    lock.unlock();
    await_device(*device->primary);
    lock.lock();
    if (device->primary_references == 1) rcuda::interop::context_destroyed(handle, lock);
  }
  if (device->primary_references == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--device->primary_references == 0 && !device->primary->given_back) end_primary(dev, *device);
  return device->session->lost() ? kSessionLost : CUDA_SUCCESS;
}

// Destroys the contents of the context. The reference count stays, so a thread that holds a
// reference may still release it. If the device cannot have a new context, for example after a
// kernel's fault, the next cuDevicePrimaryCtxRetain returns the error, as with driver 580.
CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  Device* device;
  RCUDA_RETURN_IF_CUDA_ERROR(find_device(dev, &device));
  if (!greens_of(*device->primary).empty()) return CUDA_ERROR_NOT_PERMITTED;
  await_device(*device->primary);
  const auto handle = reinterpret_cast<CUcontext>(device->primary);
  rcuda::MutexLock lock(device->mutex);
  if (!device->primary->given_back) rcuda::interop::context_destroyed(handle, lock);
  if (device->primary->given_back) return CUDA_SUCCESS;
  end_primary(dev, *device);
  return device->session->lost() ? kSessionLost : CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned flags) {
  Device* device;
  RCUDA_RETURN_IF_CUDA_ERROR(find_device(dev, &device));
  if (!valid_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
  rcuda::MutexLock lock(device->mutex);
  device->primary_flags = flags;
  if (!device->primary->given_back) device->primary->flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned* flags, int* active) {
  Device* device;
  RCUDA_RETURN_IF_CUDA_ERROR(find_device(dev, &device));
  if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
  rcuda::MutexLock lock(device->mutex);
  *flags = device->primary_flags;
  *active = !device->primary->given_back;
  return CUDA_SUCCESS;
}

// ---- created contexts --------------------------------------------------------------------------

CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice dev) {
  Device* device;
  RCUDA_RETURN_IF_CUDA_ERROR(find_device(dev, &device));
  if (!context || !valid_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
  RCUDA_RETURN_IF_CUDA_ERROR(forward_cuCtxCreate_v2(context, flags, dev));
  auto* created = find<Context>(*context);
  created->flags = flags;
  push_context(created);
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam*, int affinity_count,
                        unsigned flags, CUdevice dev) {
  // Execution affinity works only under MPS, which rcuda does not offer to programs.
  if (affinity_count != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return cuCtxCreate_v2(context, flags, dev);
}

CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* parameters, unsigned flags,
                        CUdevice dev) {
  if (parameters && parameters->numExecAffinityParams != 0) {
    return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  }
  if (parameters && parameters->cigParams) return CUDA_ERROR_NOT_SUPPORTED;
  return cuCtxCreate_v2(context, flags, dev);
}

CUresult cuCtxDestroy_v2(CUcontext handle) {
  RCUDA_RETURN_IF_CUDA_ERROR(check());
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  auto* context = find<Context>(handle);
  if (!context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (context->id < rcuda::wire::kFirstCreatedContext || context->green) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  await_device(*context);
  RetiredEarly retired;
  const std::vector<Allocation> host = forget_context(*context, &retired);
  rcuda::interop::context_destroyed(handle);
  if (current_context().get() == context) (void)pop_context();
  const CUresult result = forward_cuCtxDestroy_v2(handle);
  end_all(host);
  return result;
}

// cuCtxAttach and cuCtxDetach change the usage count of a context (deprecated). cuCtxDestroy
// ignores the count, and cuCtxDetach ignores it for primary contexts. Attaching to a green context
// returns its primary context (580 on an H100).

CUresult cuCtxAttach(CUcontext* handle, unsigned flags) {
  Context* context;
  RCUDA_RETURN_IF_CUDA_ERROR(find_alive(nullptr, &context));
  if (!handle || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (context->green) {
    context = Process::get().device(static_cast<CUdevice>(context->device))->primary;
  }
  ++context->usage;
  *handle = reinterpret_cast<CUcontext>(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext handle) {
  RCUDA_RETURN_IF_CUDA_ERROR(check());
  const Ref<Context> current = current_context();
  Context* const context = current.get();
  if (!handle || handle != reinterpret_cast<CUcontext>(current.handle()) ||
      (context && context->green)) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (!context || context->given_back) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (context->id < rcuda::wire::kFirstCreatedContext) return CUDA_SUCCESS;
  uint32_t usage = context->usage.load();
  while (usage > 1 && !context->usage.compare_exchange_weak(usage, usage - 1)) {
  }
  return usage > 1 ? CUDA_SUCCESS : cuCtxDestroy_v2(handle);
}

// ---- the stack ---------------------------------------------------------------------------------

CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  RCUDA_RETURN_IF_CUDA_ERROR(check());
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  auto* context = find<Context>(handle);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  push_context(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* handle) {
  RCUDA_RETURN_IF_CUDA_ERROR(check());
  const Ref<Context> context = pop_context();
  if (!context.handle()) return CUDA_ERROR_INVALID_CONTEXT;
  if (handle) *handle = reinterpret_cast<CUcontext>(context.handle());
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext handle) {
  RCUDA_RETURN_IF_CUDA_ERROR(check());
  Context* context = nullptr;
  if (handle && !(context = find<Context>(handle))) return CUDA_ERROR_INVALID_CONTEXT;
  set_current_context(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* handle) {
  RCUDA_RETURN_IF_CUDA_ERROR(check());
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  *handle = reinterpret_cast<CUcontext>(current_context().handle());
  return CUDA_SUCCESS;
}

// ---- properties --------------------------------------------------------------------------------

CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext handle) {
  Context* context;
  RCUDA_RETURN_IF_CUDA_ERROR(context_or_current(handle, &context));
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  *device = static_cast<CUdevice>(context->device);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) { return cuCtxGetDevice_v2(device, nullptr); }

CUresult cuCtxGetFlags(unsigned* flags) {
  Context* context;
  RCUDA_RETURN_IF_CUDA_ERROR(context_or_current(nullptr, &context));
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  *flags = context->flags;
  if (context->id >= rcuda::wire::kFirstCreatedContext) return CUDA_SUCCESS;
  // A driver adds CU_CTX_MAP_HOST to primary contexts (CUDA's documentation of cudaGetDeviceFlags:
  // "cudaDeviceMapHost ... is implicit in runtime API flags"). Take only this flag from the worker:
  // the other flags describe the scheduling of the worker's own threads.
  Device& device = *Process::get().device(static_cast<CUdevice>(context->device));
  int implied = device.implied_flags.load(std::memory_order_relaxed);
  if (implied < 0 && !context->given_back) {
    unsigned there = 0;
    RCUDA_RETURN_IF_CUDA_ERROR(forward_cuCtxGetFlags(&there));
    implied = static_cast<int>(there & CU_CTX_MAP_HOST);
    device.implied_flags.store(implied, std::memory_order_relaxed);
  }
  if (implied > 0) *flags |= static_cast<unsigned>(implied);
  return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned flags) {
  Context* context;
  RCUDA_RETURN_IF_CUDA_ERROR(find_alive(nullptr, &context));
  if (!valid_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
  context->flags = flags;
  return CUDA_SUCCESS;
}

// The client checks the value here and in cuCtxSetSharedMemConfig, because the commands are posted:
// the worker's error would arrive late.
CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
  RCUDA_RETURN_IF_CUDA_ERROR(check_current());
  if (!rcuda::cuda::is_known(config)) return CUDA_ERROR_INVALID_VALUE;
  return forward_cuCtxSetCacheConfig(config);
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
  RCUDA_RETURN_IF_CUDA_ERROR(check_current());
  if (!rcuda::cuda::is_known(config)) return CUDA_ERROR_INVALID_VALUE;
  return forward_cuCtxSetSharedMemConfig(config);
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  Context* context;
  RCUDA_RETURN_IF_CUDA_ERROR(find_alive(nullptr, &context));
  // A driver waits until the context is idle before it changes the stack size of all threads.
  if (limit == CU_LIMIT_STACK_SIZE) {
    RCUDA_RETURN_IF_CUDA_ERROR(await_idle(*context->session, context->id));
  }
  context->limits.forget();
  const CUresult result = forward_cuCtxSetLimit(limit, value);
  context->limits.forget();  // drops values that other threads have read meanwhile
  return result;
}

// Answers are cached until they may change, because cuDNN calls this function for each kernel that
// it builds.
CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
  Context* context;
  RCUDA_RETURN_IF_CUDA_ERROR(find_alive(nullptr, &context));
  if (!value || context->green) return forward_cuCtxGetLimit(value, limit);
  const KnownLimits::Moment asked = context->limits.now();
  if (context->limits.find(limit, asked, value)) return context->session->take_error();
  const CUresult result = forward_cuCtxGetLimit(value, limit);
  if (result == CUDA_SUCCESS) context->limits.keep(limit, asked, *value);
  return result;
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
  Context* context;
  RCUDA_RETURN_IF_CUDA_ERROR(find_alive(handle, &context));
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  *id = context->serial;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned* version) {
  Context* context;
  RCUDA_RETURN_IF_CUDA_ERROR(context_or_current(handle, &context));
  // Other calls return CUDA_ERROR_CONTEXT_IS_DESTROYED for a primary context that is not active.
  if (context->given_back) return CUDA_ERROR_INVALID_CONTEXT;
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = 3020;  // the driver's answer for every context since CUDA 3.2
  return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  Context* context;
  RCUDA_RETURN_IF_CUDA_ERROR(find_alive(nullptr, &context));
  if (least) *least = static_cast<int>(context->session->welcome().priority_least);
  if (greatest) *greatest = context->session->welcome().priority_greatest;
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize_v2(CUcontext handle) {
  Context* context;
  RCUDA_RETURN_IF_CUDA_ERROR(find_alive(handle, &context));
  RCUDA_RETURN_IF_CUDA_ERROR(check_context_wait(*context));
  RCUDA_RETURN_IF_CUDA_ERROR(check_unsafe_call());
  return synchronize_with_greens(*context->session, context->id);
}

CUresult cuCtxSynchronize() { return cuCtxSynchronize_v2(nullptr); }

CUresult cuCtxEnablePeerAccess(CUcontext peer_handle, unsigned flags) {
  Context* context;
  RCUDA_RETURN_IF_CUDA_ERROR(find_alive(nullptr, &context));
  const auto* peer = find<Context>(peer_handle);
  if (!peer) return CUDA_ERROR_INVALID_CONTEXT;
  if (peer->given_back) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  // Kernels cannot reach another server's memory. Copies between servers work without this call.
  if (peer->session != context->session) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  return forward_cuCtxEnablePeerAccess(peer_handle, flags);
}

CUresult cuCtxDisablePeerAccess(CUcontext peer_handle) {
  Context* context;
  RCUDA_RETURN_IF_CUDA_ERROR(find_alive(nullptr, &context));
  const auto* peer = find<Context>(peer_handle);
  if (!peer) return CUDA_ERROR_INVALID_CONTEXT;
  if (peer->session != context->session) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  return forward_cuCtxDisablePeerAccess(peer_handle);
}

// A profiler on this machine cannot reach the GPU, so the call only checks the context.
CUresult cuProfilerStart() {
  Context* context;
  return find_alive(nullptr, &context);
}
CUresult cuProfilerStop() { return cuProfilerStart(); }

}  // extern "C"
