// Converts an operation of cuMemcpy3DBatchAsync to the common form of all copies (memcpy_shapes.h).
// Pure functions of the caller's values; pointers are passed on and never followed.
#pragma once

#include <cstddef>

#include <cuda.h>

namespace rcuda::cuda {

// Returns the bytes per channel; 0 for an unknown format.
inline size_t format_bytes(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 4;
    default:
      return 0;
  }
}

inline bool is_source_order(CUmemcpySrcAccessOrder order) {
  return order >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

// Sets *bytes to the unit of the operation's extents and offsets: the size of an array's element if
// one side is an array, otherwise 1. `bytes_of` returns the element size of an array:
// CUresult(CUarray, size_t* bytes).
template <typename BytesOf>
CUresult element_bytes(const CUDA_MEMCPY3D_BATCH_OP& operation, const BytesOf& bytes_of,
                       size_t* bytes) {
  *bytes = 1;
  bool known = false;
  for (const CUmemcpy3DOperand* operand : {&operation.src, &operation.dst}) {
    if (operand->type == CU_MEMCPY_OPERAND_TYPE_POINTER) continue;
    if (operand->type != CU_MEMCPY_OPERAND_TYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
    size_t element = 0;
    if (CUresult result = bytes_of(operand->op.array.array, &element); result != CUDA_SUCCESS) {
      return result;
    }
    if (known && element != *bytes) return CUDA_ERROR_INVALID_VALUE;
    *bytes = element;
    known = true;
  }
  return CUDA_SUCCESS;
}

// One end of a copy, in the terms of CUDA_MEMCPY3D_PEER.
struct BatchOperand {
  CUmemorytype type = CU_MEMORYTYPE_UNIFIED;
  CUdeviceptr address = 0;
  CUarray array = nullptr;
  size_t x_bytes = 0, y = 0, z = 0, pitch = 0, height = 0;
};

inline CUresult read_operand(const CUmemcpy3DOperand& given, const CUextent3D& extent,
                             size_t element, BatchOperand* operand) {
  if (given.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    operand->type = CU_MEMORYTYPE_ARRAY;
    operand->array = given.op.array.array;
    operand->y = given.op.array.offset.y;
    operand->z = given.op.array.offset.z;
    return __builtin_mul_overflow(given.op.array.offset.x, element, &operand->x_bytes)
               ? CUDA_ERROR_INVALID_VALUE
               : CUDA_SUCCESS;
  }
  const size_t row = given.op.ptr.rowLength ? given.op.ptr.rowLength : extent.width;
  const size_t layer = given.op.ptr.layerHeight ? given.op.ptr.layerHeight : extent.height;
  if (row < extent.width || layer < extent.height) return CUDA_ERROR_INVALID_VALUE;
  operand->address = given.op.ptr.ptr;
  operand->height = layer;
  return __builtin_mul_overflow(row, element, &operand->pitch) ? CUDA_ERROR_INVALID_VALUE
                                                               : CUDA_SUCCESS;
}

// Converts `operation` to *copy. Returns CUDA_ERROR_INVALID_VALUE for an invalid operation, or the
// error of `bytes_of`.
template <typename BytesOf>
CUresult peer_shape(const CUDA_MEMCPY3D_BATCH_OP& operation, const BytesOf& bytes_of,
                    CUDA_MEMCPY3D_PEER* copy) {
  const CUextent3D& extent = operation.extent;
  if (extent.width == 0 || extent.height == 0 || extent.depth == 0 ||
      !is_source_order(operation.srcAccessOrder)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  size_t element = 0;
  BatchOperand from, to;
  CUresult result = element_bytes(operation, bytes_of, &element);
  if (result == CUDA_SUCCESS) result = read_operand(operation.src, extent, element, &from);
  if (result == CUDA_SUCCESS) result = read_operand(operation.dst, extent, element, &to);
  if (result != CUDA_SUCCESS) return result;
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

}  // namespace rcuda::cuda
