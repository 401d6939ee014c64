// cuStream* (except capture and memory operations) and the context's stream queries.
#include <cstring>
#include <utility>

#include <cuda.h>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/green.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/pools.h"
#include "softgpu/driver/stream.h"

using namespace softgpu::driver;

namespace {

constexpr unsigned kMemorySyncDomains = 4;  // CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT

// Checks whether captures forbid a query of the stream or a wait for it.
CUresult check_wait(Stream& stream) {
  if (CUresult result = refuse_on_capturing(stream)) return result;
  if (CUresult result = refuse_implicit(stream)) return result;
  return check_unsafe_call();
}

CUresult host_operation(CUstream handle, HostOperation operation) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(handle, &context, &stream)) return result;
  if (operation.function == nullptr && operation.callback == nullptr) {
    invalidate_capture_of(*stream);
    return CUDA_ERROR_INVALID_VALUE;
  }
  return submit(*stream, std::move(operation));
}

bool valid_window(const Device& device, const CUaccessPolicyWindow& window) {
  const int greatest = *device.attribute(CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE);
  return window.num_bytes <= static_cast<size_t>(greatest) && window.hitRatio >= 0 &&
         window.hitRatio <= 1;
}

CUresult create_stream(CUstream* stream, unsigned flags, int priority) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (stream == nullptr || (flags & ~CU_STREAM_NON_BLOCKING) != 0) return CUDA_ERROR_INVALID_VALUE;
  return create_stream_in(*current_context(), stream, flags, priority);
}

}  // namespace

CUresult softgpu::driver::create_stream_in(Context& context, CUstream* stream, unsigned flags,
                                           int priority) {
  if (context.is_green()) flags |= CU_STREAM_NON_BLOCKING;  // like driver 580 on an H100
  const std::shared_ptr<Stream> made = streams_of(context).create(flags, priority);
  if (made == nullptr) return CUDA_ERROR_CONTEXT_IS_DESTROYED;  // destroyed by another thread
  *stream = made->handle();
  return CUDA_SUCCESS;
}

namespace {

CUresult destroy_stream(CUstream handle) {
  if (CUresult result = check_initialized()) return result;
  const std::shared_ptr<Stream> stream = handle_table<Stream>().find(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult result = stream->context().sticky()) return result;
  handle_table<Stream>().remove(handle);
  end_capture_of(*stream);
  stream->retire();
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuStreamCreate(CUstream* phStream, unsigned int Flags) {
  return create_stream(phStream, Flags, kMinStreamPriority);
}

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags, int priority) {
  return create_stream(phStream, flags, priority);
}

CUresult CUDAAPI cuStreamDestroy(CUstream hStream) { return destroy_stream(hStream); }
CUresult CUDAAPI cuStreamDestroy_v2(CUstream hStream) { return destroy_stream(hStream); }

CUresult CUDAAPI cuStreamGetPriority(CUstream hStream, int* priority) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(hStream, &context, &stream)) return result;
  if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *priority = stream->priority();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetFlags(CUstream hStream, unsigned int* flags) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(hStream, &context, &stream)) return result;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = stream->flags();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetId(CUstream hStream, unsigned long long* streamId) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(hStream, &context, &stream)) return result;
  if (streamId == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *streamId = stream->id();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetDevice(CUstream hStream, CUdevice* device) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(hStream, &context, &stream)) return result;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = stream->context().device().ordinal();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetCtx(CUstream hStream, CUcontext* pctx) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(hStream, &context, &stream)) return result;
  if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *pctx = stream->context().handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetCtx_v2(CUstream hStream, CUcontext* pCtx, CUgreenCtx* pGreenCtx) {
  Context* context = nullptr;  // unlike in the first version, both outputs are optional
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(hStream, &context, &stream)) return result;
  if (pCtx != nullptr) *pCtx = context->owner().handle();
  if (pGreenCtx != nullptr) *pGreenCtx = green_handle(*context);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetGreenCtx(CUstream hStream, CUgreenCtx* phCtx) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(hStream, &context, &stream)) return result;
  if (phCtx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *phCtx = green_handle(*context);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamQuery(CUstream hStream) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(hStream, &context, &stream)) return result;
  if (CUresult result = check_wait(*stream)) return result;
  if (!stream->finished()) return CUDA_ERROR_NOT_READY;
  return stream->context().sticky();
}

CUresult CUDAAPI cuStreamSynchronize(CUstream hStream) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(hStream, &context, &stream)) return result;
  if (CUresult result = check_wait(*stream)) return result;
  stream->synchronize();
  observe_frees(stream->context().device());
  return stream->context().sticky();
}

CUresult CUDAAPI cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void* userData,
                                     unsigned int flags) {
  if (flags != 0) callback = nullptr;
  return host_operation(hStream, {nullptr, callback, hStream, userData});
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void* userData) {
  return host_operation(hStream, {fn, nullptr, hStream, userData});
}

// Every allocation is visible to every stream, so this only checks its arguments.
CUresult CUDAAPI cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length,
                                        unsigned int flags) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(hStream, &context, &stream)) return result;
  if (CUresult result = refuse_on_capturing(*stream)) return result;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
      flags != CU_MEM_ATTACH_SINGLE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (flags == CU_MEM_ATTACH_SINGLE && stream->kind() == Stream::Kind::kLegacy) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto allocation = memory_registry().find_base(dptr);
  if (allocation == nullptr || allocation->kind != MemoryKind::kManaged ||
      (length != 0 && length != allocation->bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetAttribute(CUstream hStream, CUstreamAttrID attr,
                                      CUstreamAttrValue* value_out) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(hStream, &context, &stream)) return result;
  if (value_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(stream->attributes_mutex);
  const Stream::Attributes& attributes = stream->attributes;
  switch (attr) {
    case CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      value_out->accessPolicyWindow = attributes.access_policy;
      return CUDA_SUCCESS;
    case CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      value_out->syncPolicy = attributes.synchronization;
      return CUDA_SUCCESS;
    case CU_STREAM_ATTRIBUTE_PRIORITY:
      value_out->priority = stream->priority();
      return CUDA_SUCCESS;
    case CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
      value_out->memSyncDomainMap = attributes.memory_domain_map;
      return CUDA_SUCCESS;
    case CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN:
      value_out->memSyncDomain = attributes.memory_domain;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult CUDAAPI cuStreamSetAttribute(CUstream hStream, CUstreamAttrID attr,
                                      const CUstreamAttrValue* value) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(hStream, &context, &stream)) return result;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(stream->attributes_mutex);
  Stream::Attributes& attributes = stream->attributes;
  switch (attr) {
    case CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      if (!valid_window(context->device(), value->accessPolicyWindow)) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      attributes.access_policy = value->accessPolicyWindow;
      return CUDA_SUCCESS;
    case CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      if (value->syncPolicy < CU_SYNC_POLICY_AUTO ||
          value->syncPolicy > CU_SYNC_POLICY_BLOCKING_SYNC) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      attributes.synchronization = value->syncPolicy;
      return CUDA_SUCCESS;
    case CU_STREAM_ATTRIBUTE_PRIORITY:
      stream->set_priority(value->priority);
      return CUDA_SUCCESS;
    case CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
      if (value->memSyncDomainMap.default_ >= kMemorySyncDomains ||
          value->memSyncDomainMap.remote >= kMemorySyncDomains) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      attributes.memory_domain_map = value->memSyncDomainMap;
      return CUDA_SUCCESS;
    case CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN:
      if (value->memSyncDomain > CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE) return CUDA_ERROR_INVALID_VALUE;
      attributes.memory_domain = value->memSyncDomain;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult CUDAAPI cuStreamCopyAttributes(CUstream dst, CUstream src) {
  Context* context = nullptr;
  std::shared_ptr<Stream> to, from;
  if (CUresult result = enter_stream(dst, &context, &to)) return result;
  if (CUresult result = resolve_stream(src, &from)) return result;
  if (&to->context() != &from->context()) return CUDA_ERROR_INVALID_VALUE;
  if (to == from) return CUDA_SUCCESS;
  Stream::Attributes copied;
  {
    std::lock_guard lock(from->attributes_mutex);
    copied = from->attributes;
  }
  std::lock_guard lock(to->attributes_mutex);
  to->attributes = copied;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (leastPriority != nullptr) *leastPriority = kMinStreamPriority;
  if (greatestPriority != nullptr) *greatestPriority = kGreatestStreamPriority;
  return CUDA_SUCCESS;
}

}  // extern "C"
