// cuMemcpyBatchAsync and cuMemcpy3DBatchAsync: copies that may run in any order. Here they run in
// the given one, each on its own best way; the attributes' hints of place and overlap change
// nothing over a network.

#include <vector>

#include <cuda.h>

#include "client/memory/copy.h"

namespace rcuda::client {
namespace {

size_t format_bytes(CUarray_format format) {
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

// Extents and offsets are counted in elements: those of the array that takes part, else bytes.
CUresult element_bytes(const CUDA_MEMCPY3D_BATCH_OP& operation, size_t* bytes) {
  *bytes = 1;
  bool known = false;
  for (const CUmemcpy3DOperand* operand : {&operation.src, &operation.dst}) {
    if (operand->type == CU_MEMCPY_OPERAND_TYPE_POINTER) continue;
    if (operand->type != CU_MEMCPY_OPERAND_TYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR array;
    if (CUresult result = cuArray3DGetDescriptor_v2(&array, operand->op.array.array);
        result != CUDA_SUCCESS) {
      return result;
    }
    const size_t element = format_bytes(array.Format) * array.NumChannels;
    if (element == 0) return CUDA_ERROR_NOT_SUPPORTED;
    if (known && element != *bytes) return CUDA_ERROR_INVALID_VALUE;
    *bytes = element;
    known = true;
  }
  return CUDA_SUCCESS;
}

// One end of a copy, in the terms of CUDA_MEMCPY3D_PEER.
struct Operand {
  CUmemorytype type = CU_MEMORYTYPE_UNIFIED;
  CUdeviceptr address = 0;
  CUarray array = nullptr;
  size_t x_bytes = 0, y = 0, z = 0, pitch = 0, height = 0;
};

CUresult read_operand(const CUmemcpy3DOperand& given, const CUextent3D& extent, size_t element,
                      Operand* operand) {
  if (given.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    operand->type = CU_MEMORYTYPE_ARRAY;
    operand->array = given.op.array.array;
    operand->x_bytes = given.op.array.offset.x * element;
    operand->y = given.op.array.offset.y;
    operand->z = given.op.array.offset.z;
    return CUDA_SUCCESS;
  }
  const size_t row = given.op.ptr.rowLength ? given.op.ptr.rowLength : extent.width;
  const size_t layer = given.op.ptr.layerHeight ? given.op.ptr.layerHeight : extent.height;
  if (row < extent.width || layer < extent.height) return CUDA_ERROR_INVALID_VALUE;
  operand->address = given.op.ptr.ptr;
  operand->height = layer;
  return __builtin_mul_overflow(row, element, &operand->pitch) ? CUDA_ERROR_INVALID_VALUE
                                                               : CUDA_SUCCESS;
}

CUresult read_operation(const CUDA_MEMCPY3D_BATCH_OP& operation, CUDA_MEMCPY3D_PEER* copy) {
  const CUextent3D& extent = operation.extent;
  if (extent.width == 0 || extent.height == 0 || extent.depth == 0 ||
      operation.srcAccessOrder < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
      operation.srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  size_t element = 0;
  Operand from, to;
  if (CUresult result = element_bytes(operation, &element); result != CUDA_SUCCESS) return result;
  if (CUresult result = read_operand(operation.src, extent, element, &from);
      result != CUDA_SUCCESS) {
    return result;
  }
  if (CUresult result = read_operand(operation.dst, extent, element, &to); result != CUDA_SUCCESS) {
    return result;
  }
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

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

extern "C" {

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* destinations, CUdeviceptr* sources, size_t* sizes,
                               size_t count, CUmemcpyAttributes* attributes,
                               size_t* attribute_starts, size_t attribute_count, CUstream stream) {
  if (!destinations || !sources || !sizes || count == 0 || !attributes || !attribute_starts ||
      attribute_count == 0 || attribute_count > count || attribute_starts[0] != 0 || !stream ||
      stream == CU_STREAM_LEGACY) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  bool read_before_return = false;
  for (size_t i = 0; i < attribute_count; ++i) {
    if (attribute_starts[i] >= count) return CUDA_ERROR_INVALID_VALUE;
    if (i != 0 && attribute_starts[i] <= attribute_starts[i - 1]) return CUDA_ERROR_INVALID_VALUE;
    switch (attributes[i].srcAccessOrder) {
      case CU_MEMCPY_SRC_ACCESS_ORDER_STREAM:
      case CU_MEMCPY_SRC_ACCESS_ORDER_ANY:
        break;
      case CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL:
        read_before_return = true;
        break;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    const CUresult result = cuMemcpyAsync(destinations[i], sources[i], sizes[i], stream);
    if (result != CUDA_SUCCESS) return result;
  }
  return read_before_return ? cuStreamSynchronize(stream) : CUDA_SUCCESS;
}

// Checked as a whole before its first copy is sent.
CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP* operations,
                                 unsigned long long flags, CUstream stream) {
  if (count == 0 || !operations || flags != 0 || !stream || stream == CU_STREAM_LEGACY) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  bool read_before_return = false;
  std::vector<CUDA_MEMCPY3D_PEER> copies(count);
  for (size_t i = 0; i < count; ++i) {
    if (CUresult result = read_operation(operations[i], &copies[i]); result != CUDA_SUCCESS) {
      return result;
    }
    read_before_return |=
        operations[i].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  }
  for (const CUDA_MEMCPY3D_PEER& copy : copies) {
    if (CUresult result = copy_shape(copy, stream, false); result != CUDA_SUCCESS) return result;
  }
  return read_before_return ? cuStreamSynchronize(stream) : CUDA_SUCCESS;
}

}  // extern "C"
