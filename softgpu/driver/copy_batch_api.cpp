// cuMemcpyBatchAsync and cuMemcpy3DBatchAsync: several copies in one call. The whole batch is
// checked before its first copy is queued.
#include <utility>
#include <vector>

#include <cuda.h>

#include "common/cuda/batch_shape.h"
#include "softgpu/driver/array.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/copy.h"
#include "softgpu/driver/operation.h"

using namespace softgpu::driver;

namespace {

CUresult check_stream(CUstream stream) {
  if (!stream || stream == CU_STREAM_LEGACY) return CUDA_ERROR_INVALID_VALUE;
  return is_capturing(stream) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult element_bytes_of(CUarray handle, size_t* bytes) {
  const std::shared_ptr<Array> array = array_from_handle(handle);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  *bytes = array->element_bytes;
  return CUDA_SUCCESS;
}

// `order`: when the copy's source may be read. With DURING_API_CALL the source is read now, so the
// call need not wait for the copy. Otherwise the call waits for copies of pageable memory, as with
// single copies.
CUresult add(const CUDA_MEMCPY3D_PEER& shape, CUmemcpySrcAccessOrder order,
             std::vector<CopyOperation>* copies) {
  CopyOperation copy;
  copy.shape = shape;
  if (CUresult result = resolve_copy(&copy.shape)) return result;
  if (order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL) {
    if (CUresult result = stage_source(&copy)) return result;
  }
  if (CUresult result = hold_memory_to_queue(&copy)) return result;
  copies->push_back(std::move(copy));
  return CUDA_SUCCESS;
}

CUresult submit_all(CUstream stream, std::vector<CopyOperation> copies) {
  for (CopyOperation& copy : copies) {
    const bool waits = uses_pageable_memory(copy);
    if (CUresult result =
            waits ? submit_and_wait(stream, std::move(copy)) : submit(stream, std::move(copy))) {
      return result;
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuMemcpyBatchAsync_v2(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes,
                                       size_t count, CUmemcpyAttributes* attributes,
                                       size_t* attribute_indices, size_t attribute_count,
                                       CUstream stream) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!to || !from || !bytes || count == 0 || !attributes || !attribute_indices ||
      attribute_count == 0 || attribute_count > count || attribute_indices[0] != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (CUresult result = check_stream(stream)) return result;
  std::vector<CopyOperation> copies;
  for (size_t k = 0; k < attribute_count; ++k) {
    const size_t first = attribute_indices[k];
    const size_t end = k + 1 < attribute_count ? attribute_indices[k + 1] : count;
    if (end <= first || end > count ||
        !rcuda::cuda::is_source_order(attributes[k].srcAccessOrder) ||
        attributes[k].flags & ~CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = first; i < end; ++i) {
      if (bytes[i] == 0) return CUDA_ERROR_INVALID_VALUE;
      const CUDA_MEMCPY3D_PEER shape = linear_copy(to[i], from[i], bytes[i]);
      if (CUresult result = add(shape, attributes[k].srcAccessOrder, &copies)) return result;
    }
  }
  return submit_all(stream, std::move(copies));
}

CUresult CUDAAPI cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP* operations,
                                         unsigned long long flags, CUstream stream) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (count == 0 || !operations || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = check_stream(stream)) return result;
  std::vector<CopyOperation> copies;
  for (size_t i = 0; i < count; ++i) {
    CUDA_MEMCPY3D_PEER shape;
    if (CUresult result = rcuda::cuda::peer_shape(operations[i], element_bytes_of, &shape)) {
      return result;
    }
    if (CUresult result = add(shape, operations[i].srcAccessOrder, &copies)) {
      return result;
    }
  }
  return submit_all(stream, std::move(copies));
}

}  // extern "C"
