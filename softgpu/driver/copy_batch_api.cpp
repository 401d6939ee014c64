// cuMemcpyBatchAsync and cuMemcpy3DBatchAsync: several copies in one call. A batch is checked as a
// whole before its first copy is queued.
#include <utility>
#include <vector>

#include <cuda.h>

#include "common/cuda/memcpy_shapes.h"
#include "softgpu/driver/array.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/copy.h"
#include "softgpu/driver/operation.h"

using namespace softgpu::driver;

namespace {

bool valid_order(CUmemcpySrcAccessOrder order) {
  return order >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

CUresult check_stream(CUstream stream) {
  if (!stream || stream == CU_STREAM_LEGACY) return CUDA_ERROR_INVALID_VALUE;
  return is_capturing(stream) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

// Extents and offsets are counted in elements: those of the array that takes part, else bytes.
CUresult element_bytes(const CUDA_MEMCPY3D_BATCH_OP& op, size_t* bytes) {
  *bytes = 1;
  bool known = false;
  for (const CUmemcpy3DOperand* operand : {&op.src, &op.dst}) {
    if (operand->type == CU_MEMCPY_OPERAND_TYPE_POINTER) continue;
    if (operand->type != CU_MEMCPY_OPERAND_TYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Array> array = array_from_handle(operand->op.array.array);
    if (!array) return CUDA_ERROR_INVALID_HANDLE;
    if (known && array->element_bytes != *bytes) return CUDA_ERROR_INVALID_VALUE;
    *bytes = array->element_bytes;
    known = true;
  }
  return CUDA_SUCCESS;
}

// One end of a copy of `extent` elements, in the terms of CUDA_MEMCPY3D.
struct Operand {
  CUmemorytype type = CU_MEMORYTYPE_UNIFIED;
  CUdeviceptr address = 0;
  CUarray array = nullptr;
  size_t x_bytes = 0, y = 0, z = 0, pitch = 0, height = 0;
};

CUresult read_operand(const CUmemcpy3DOperand& in, const CUextent3D& extent, size_t element,
                      Operand* out) {
  if (in.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    out->type = CU_MEMORYTYPE_ARRAY;
    out->array = in.op.array.array;
    out->x_bytes = in.op.array.offset.x * element;
    out->y = in.op.array.offset.y;
    out->z = in.op.array.offset.z;
    return CUDA_SUCCESS;
  }
  const size_t row = in.op.ptr.rowLength ? in.op.ptr.rowLength : extent.width;
  const size_t layer = in.op.ptr.layerHeight ? in.op.ptr.layerHeight : extent.height;
  if (row < extent.width || layer < extent.height) return CUDA_ERROR_INVALID_VALUE;
  out->address = in.op.ptr.ptr;
  out->height = layer;
  return __builtin_mul_overflow(row, element, &out->pitch) ? CUDA_ERROR_INVALID_VALUE
                                                           : CUDA_SUCCESS;
}

CUresult read_operation(const CUDA_MEMCPY3D_BATCH_OP& op, CUDA_MEMCPY3D* copy) {
  const CUextent3D& extent = op.extent;
  if (extent.width == 0 || extent.height == 0 || extent.depth == 0 ||
      !valid_order(op.srcAccessOrder)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  size_t element = 0;
  Operand from, to;
  if (CUresult result = element_bytes(op, &element)) return result;
  if (CUresult result = read_operand(op.src, extent, element, &from)) return result;
  if (CUresult result = read_operand(op.dst, extent, element, &to)) return result;
  *copy = {};
  copy->srcMemoryType = from.type;
  copy->srcDevice = from.address;
  copy->srcArray = from.array;
  copy->srcXInBytes = from.x_bytes;
  copy->srcY = from.y;
  copy->srcZ = from.z;
  copy->srcPitch = from.pitch;
  copy->srcHeight = from.height;
  copy->dstMemoryType = to.type;
  copy->dstDevice = to.address;
  copy->dstArray = to.array;
  copy->dstXInBytes = to.x_bytes;
  copy->dstY = to.y;
  copy->dstZ = to.z;
  copy->dstPitch = to.pitch;
  copy->dstHeight = to.height;
  copy->Height = extent.height;
  copy->Depth = extent.depth;
  return __builtin_mul_overflow(extent.width, element, &copy->WidthInBytes)
             ? CUDA_ERROR_INVALID_VALUE
             : CUDA_SUCCESS;
}

// Unlike single copies, those of a batch say when their source may be read. Otherwise pageable
// memory takes part as it does in single copies: the call waits.
CUresult add(const CUDA_MEMCPY3D_PEER& shape, CUmemcpySrcAccessOrder order,
             std::vector<CopyOperation>* copies) {
  CopyOperation copy;
  copy.shape = shape;
  if (CUresult result = resolve_copy(&copy.shape)) return result;
  if (order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL) {
    if (CUresult result = stage_source(&copy)) return result;
  }
  if (CUresult result = hold_memory(&copy)) return result;
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
    if (end <= first || end > count || !valid_order(attributes[k].srcAccessOrder)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = first; i < end; ++i) {
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
    CUDA_MEMCPY3D copy;
    if (CUresult result = read_operation(operations[i], &copy)) return result;
    if (CUresult result =
            add(rcuda::cuda::peer_shape(copy), operations[i].srcAccessOrder, &copies)) {
      return result;
    }
  }
  return submit_all(stream, std::move(copies));
}

}  // extern "C"
