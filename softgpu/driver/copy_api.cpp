// cuMemcpy*: every shape and direction ends in submit_copy(), except cuMemcpyPeer and
// cuMemcpy3DPeer.
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <cuda.h>

#include "common/cuda/memcpy_shapes.h"
#include "softgpu/driver/array.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/copy.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/operation.h"
#include "softgpu/driver/stream.h"

using namespace softgpu::driver;

namespace {

// The memory of one side of a copy. Device memory and arrays have a device and usually an owner.
// Read `owner` only while the memory is held.
struct Side {
  bool on_host = false;
  bool sync_memops = false;
  Device* device = nullptr;
  Context* owner = nullptr;

  Context& context() const {
    return owner && &owner->device() == device ? *owner : device->primary();
  }
};

Side side_of(CUmemorytype type, uint64_t address, CUarray array_handle) {
  Side side;
  if (type == CU_MEMORYTYPE_ARRAY) {
    const std::shared_ptr<Array> array = array_from_handle(array_handle);
    if (array) {
      side.owner = array->context;
      side.device = &array->context->device();
    }
    return side;
  }
  const std::shared_ptr<Allocation> allocation = memory_registry().find(address);
  side.on_host = type == CU_MEMORYTYPE_HOST || (allocation && allocation->on_host());
  if (type == CU_MEMORYTYPE_HOST || !allocation) return side;
  side.sync_memops = allocation->sync_memops.load(std::memory_order_relaxed);
  side.device = allocation->device;
  side.owner = allocation->owner;
  return side;
}

Side source_of(const CUDA_MEMCPY3D_PEER& shape) {
  return side_of(shape.srcMemoryType, shape.srcDevice, shape.srcArray);
}

Side destination_of(const CUDA_MEMCPY3D_PEER& shape) {
  return side_of(shape.dstMemoryType, shape.dstDevice, shape.dstArray);
}

// Waits for the default stream of a context other than the current one.
CUresult wait_for_default_stream(Context& context) {
  if (!context.alive()) return CUDA_SUCCESS;
  if (CUresult result = context.sticky()) return result;
  StreamSet& streams = streams_of(context);
  const std::shared_ptr<Stream> stream =
      default_stream() == CU_STREAM_PER_THREAD ? streams.per_thread() : streams.legacy();
  if (CUresult result = refuse_implicit(*stream)) return result;
  stream->synchronize();
  return context.sticky();
}

// Orders the copy after all earlier work in the default streams of both devices, and before later
// work in them: waits for these streams, then for the copy.
CUresult copy_between_devices(const Side& source, const Side& destination,
                              CopyOperation operation) {
  for (const Side* side : {&source, &destination}) {
    if (&side->context() == current_context()) continue;
    if (CUresult result = wait_for_default_stream(side->context())) return result;
  }
  return submit_and_wait(default_stream(), std::move(operation));
}

// A pool's memory, unlike other memory, is copied only if the copying device has access to it. The
// copying device is the device that the copy names for this side, or the stream's device if the
// copy names none.
CUresult check_pool_access(CUmemorytype type, CUdeviceptr address, CUcontext named,
                           CUstream stream) {
  if (type != CU_MEMORYTYPE_DEVICE) return CUDA_SUCCESS;
  const std::shared_ptr<Allocation> memory = memory_registry().find(address);
  if (!memory || memory->kind != MemoryKind::kPool) return CUDA_SUCCESS;
  std::shared_ptr<Context> by = named ? Context::from_handle(named) : nullptr;
  if (!by) {
    Context* context = nullptr;
    std::shared_ptr<Stream> of;
    if (CUresult result = enter_stream(stream, &context, &of)) return result;
    by = context->shared_from_this();
  }
  return memory->readable_by(by->device()) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

enum class Mode { kSynchronous, kAsynchronous };

CUresult submit_copy(CUDA_MEMCPY3D_PEER shape, CUstream stream, Mode mode) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) {
    std::shared_ptr<Stream> created;
    const bool none_current = result == CUDA_ERROR_INVALID_CONTEXT;
    if (!none_current || enter_stream(stream, &context, &created)) return result;
  }
  CopyOperation operation;
  operation.unified = is_unified(shape);
  if (CUresult result = resolve_copy(&shape)) return result;
  if (CUresult result =
          check_pool_access(shape.srcMemoryType, shape.srcDevice, shape.srcContext, stream)) {
    return result;
  }
  if (CUresult result =
          check_pool_access(shape.dstMemoryType, shape.dstDevice, shape.dstContext, stream)) {
    return result;
  }
  operation.shape = shape;
  const bool held = !is_capturing(stream);
  const bool is_empty = shape.WidthInBytes == 0 || shape.Height == 0 || shape.Depth == 0;
  // An empty copy does not become a node of a capture.
  if (is_empty && !held && mode == Mode::kAsynchronous) return CUDA_SUCCESS;
  if (held) {
    if (CUresult result = hold_memory_to_queue(&operation)) return result;
  }
  if (mode == Mode::kSynchronous) {
    const Side source = source_of(shape), destination = destination_of(shape);
    if (held && !is_empty && source.device && destination.device &&
        source.device != destination.device) {
      return copy_between_devices(source, destination, std::move(operation));
    }
    // The host does not wait for a copy within a device unless CU_POINTER_ATTRIBUTE_SYNC_MEMOPS or
    // CU_CTX_SYNC_MEMOPS is set.
    if (!source.on_host && !destination.on_host && !source.sync_memops &&
        !destination.sync_memops && !context->sync_memops()) {
      return submit(stream, std::move(operation));
    }
    return submit_and_wait(stream, std::move(operation));
  }
  if (!uses_pageable_memory(operation) || is_capturing(stream))
    return submit(stream, std::move(operation));
  if (shape.srcMemoryType == CU_MEMORYTYPE_HOST && shape.dstMemoryType != CU_MEMORYTYPE_HOST &&
      shape.Height == 1 && shape.Depth == 1 && shape.WidthInBytes <= kStagedBytes) {
    if (CUresult result = stage_source(&operation)) return result;
    return submit(stream, std::move(operation));
  }
  return submit_and_wait(stream, std::move(operation));
}

CUresult copy_linear(CUdeviceptr to, CUmemorytype to_type, CUdeviceptr from, CUmemorytype from_type,
                     size_t bytes, CUstream stream, Mode mode) {
  CUDA_MEMCPY3D_PEER shape = linear_copy(to, from, bytes);
  shape.dstMemoryType = to_type;
  shape.srcMemoryType = from_type;
  return submit_copy(shape, stream, mode);
}

CUdeviceptr address_of(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

// A copy between linear memory and one row of an array, at a byte offset.
CUresult copy_array(CUarray to_array, size_t to_offset, CUdeviceptr to, CUarray from_array,
                    size_t from_offset, CUdeviceptr from, size_t bytes, bool host, CUstream stream,
                    Mode mode) {
  CUDA_MEMCPY3D_PEER shape = linear_copy(to, from, bytes);
  const CUmemorytype linear = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  shape.dstMemoryType = to_array ? CU_MEMORYTYPE_ARRAY : linear;
  shape.srcMemoryType = from_array ? CU_MEMORYTYPE_ARRAY : linear;
  shape.dstArray = to_array;
  shape.srcArray = from_array;
  shape.dstXInBytes = to_offset;
  shape.srcXInBytes = from_offset;
  return submit_copy(shape, stream, mode);
}

// nullptr means the current context.
std::shared_ptr<Context> context_of(CUcontext handle) {
  return handle ? Context::from_handle(handle) : current_context_shared();
}

// Waits for the pending work of both contexts, because a peer copy begins after that work. Skips
// the current context, because the caller queues the copy in that context's default stream.
CUresult wait_for_peers(CUcontext first, CUcontext second) {
  Context* current = current_context();
  for (CUcontext handle : {first, second}) {
    std::shared_ptr<Context> context = context_of(handle);
    if (!context || !context->alive()) return CUDA_ERROR_INVALID_CONTEXT;
    if (context.get() == current) continue;
    if (CUresult result = context->sticky()) return result;
    if (CUresult result = context->synchronize()) return result;
  }
  return CUDA_SUCCESS;
}

CUresult check_contexts(CUcontext first, CUcontext second) {
  for (CUcontext handle : {first, second}) {
    std::shared_ptr<Context> context = context_of(handle);
    if (!context || !context->alive()) return CUDA_ERROR_INVALID_CONTEXT;
  }
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return submit_copy(linear_copy(to, from, bytes), default_stream(), Mode::kSynchronous);
}

CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return submit_copy(linear_copy(to, from, bytes), stream, Mode::kAsynchronous);
}

CUresult CUDAAPI cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  return copy_linear(to, CU_MEMORYTYPE_DEVICE, address_of(from), CU_MEMORYTYPE_HOST, bytes,
                     default_stream(), Mode::kSynchronous);
}

CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes,
                                      CUstream stream) {
  return copy_linear(to, CU_MEMORYTYPE_DEVICE, address_of(from), CU_MEMORYTYPE_HOST, bytes, stream,
                     Mode::kAsynchronous);
}

CUresult CUDAAPI cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  return copy_linear(address_of(to), CU_MEMORYTYPE_HOST, from, CU_MEMORYTYPE_DEVICE, bytes,
                     default_stream(), Mode::kSynchronous);
}

CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_linear(address_of(to), CU_MEMORYTYPE_HOST, from, CU_MEMORYTYPE_DEVICE, bytes, stream,
                     Mode::kAsynchronous);
}

CUresult CUDAAPI cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy_linear(to, CU_MEMORYTYPE_DEVICE, from, CU_MEMORYTYPE_DEVICE, bytes, default_stream(),
                     Mode::kSynchronous);
}

CUresult CUDAAPI cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                      CUstream stream) {
  return copy_linear(to, CU_MEMORYTYPE_DEVICE, from, CU_MEMORYTYPE_DEVICE, bytes, stream,
                     Mode::kAsynchronous);
}

CUresult CUDAAPI cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                              CUcontext from_context, size_t bytes) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (CUresult result = wait_for_peers(to_context, from_context)) return result;
  CUDA_MEMCPY3D_PEER shape = linear_copy(to, from, bytes);
  shape.srcMemoryType = shape.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  shape.dstContext = to_context;
  shape.srcContext = from_context;
  if (CUresult result = resolve_copy(&shape)) return result;
  CopyOperation operation;
  operation.shape = shape;
  return submit_and_wait(default_stream(), std::move(operation));
}

CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                   CUcontext from_context, size_t bytes, CUstream stream) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (CUresult result = check_contexts(to_context, from_context)) return result;
  CUDA_MEMCPY3D_PEER shape = linear_copy(to, from, bytes);
  shape.srcMemoryType = shape.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  shape.dstContext = to_context;
  shape.srcContext = from_context;
  return submit_copy(shape, stream, Mode::kAsynchronous);
}

CUresult CUDAAPI cuMemcpyDtoA_v2(CUarray to, size_t offset, CUdeviceptr from, size_t bytes) {
  return copy_array(to, offset, 0, nullptr, 0, from, bytes, false, default_stream(),
                    Mode::kSynchronous);
}

CUresult CUDAAPI cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t offset, size_t bytes) {
  return copy_array(nullptr, 0, to, from, offset, 0, bytes, false, default_stream(),
                    Mode::kSynchronous);
}

CUresult CUDAAPI cuMemcpyHtoA_v2(CUarray to, size_t offset, const void* from, size_t bytes) {
  return copy_array(to, offset, 0, nullptr, 0, address_of(from), bytes, true, default_stream(),
                    Mode::kSynchronous);
}

CUresult CUDAAPI cuMemcpyAtoH_v2(void* to, CUarray from, size_t offset, size_t bytes) {
  return copy_array(nullptr, 0, address_of(to), from, offset, 0, bytes, true, default_stream(),
                    Mode::kSynchronous);
}

CUresult CUDAAPI cuMemcpyAtoA_v2(CUarray to, size_t to_offset, CUarray from, size_t from_offset,
                                 size_t bytes) {
  return copy_array(to, to_offset, 0, from, from_offset, 0, bytes, false, default_stream(),
                    Mode::kSynchronous);
}

CUresult CUDAAPI cuMemcpyHtoAAsync_v2(CUarray to, size_t offset, const void* from, size_t bytes,
                                      CUstream stream) {
  return copy_array(to, offset, 0, nullptr, 0, address_of(from), bytes, true, stream,
                    Mode::kAsynchronous);
}

CUresult CUDAAPI cuMemcpyAtoHAsync_v2(void* to, CUarray from, size_t offset, size_t bytes,
                                      CUstream stream) {
  return copy_array(nullptr, 0, address_of(to), from, offset, 0, bytes, true, stream,
                    Mode::kAsynchronous);
}

CUresult CUDAAPI cuMemcpy2D_v2(const CUDA_MEMCPY2D* copy) {
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  return submit_copy(rcuda::cuda::peer_shape(*copy), default_stream(), Mode::kSynchronous);
}

CUresult CUDAAPI cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* copy) { return cuMemcpy2D_v2(copy); }

CUresult CUDAAPI cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  return submit_copy(rcuda::cuda::peer_shape(*copy), stream, Mode::kAsynchronous);
}

CUresult CUDAAPI cuMemcpy3D_v2(const CUDA_MEMCPY3D* copy) {
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  return submit_copy(rcuda::cuda::peer_shape(*copy), default_stream(), Mode::kSynchronous);
}

CUresult CUDAAPI cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, CUstream stream) {
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  return submit_copy(rcuda::cuda::peer_shape(*copy), stream, Mode::kAsynchronous);
}

CUresult CUDAAPI cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* copy) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = wait_for_peers(copy->dstContext, copy->srcContext)) return result;
  CopyOperation operation;
  operation.shape = *copy;
  if (CUresult result = resolve_copy(&operation.shape)) return result;
  return submit_and_wait(default_stream(), std::move(operation));
}

CUresult CUDAAPI cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* copy, CUstream stream) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = check_contexts(copy->dstContext, copy->srcContext)) return result;
  return submit_copy(*copy, stream, Mode::kAsynchronous);
}

}  // extern "C"
