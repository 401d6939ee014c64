// cuMemcpyBatchAsync and cuMemcpy3DBatchAsync: copies that may run in any order. Here they run in
// the given order, as single copies. The hints about location and overlap have no effect over a
// network. Graphs have no node for a batch, so a batch cannot be captured.

#include <vector>

#include <cuda.h>

#include "client/copy/copy.h"
#include "client/route/capture.h"
#include "client/route/find_route.h"
#include "common/cuda/batch_shape.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {
namespace {

CUresult element_bytes_of(CUarray handle, size_t* bytes) {
  CUDA_ARRAY3D_DESCRIPTOR array;
  RCUDA_RETURN_IF_CUDA_ERROR(cuArray3DGetDescriptor_v2(&array, handle));
  *bytes = cuda::format_bytes(array.Format) * array.NumChannels;
  return *bytes == 0 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

extern "C" {

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* destinations, CUdeviceptr* sources, size_t* sizes,
                               size_t count, CUmemcpyAttributes* attributes,
                               size_t* attribute_starts, size_t attribute_count, CUstream stream) {
  RCUDA_RETURN_IF_CUDA_ERROR(check_copy(stream));
  if (!destinations || !sources || !sizes || count == 0 || !attributes || !attribute_starts ||
      attribute_count == 0 || attribute_count > count || attribute_starts[0] != 0 || !stream ||
      stream == CU_STREAM_LEGACY) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (may_capture(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  bool read_before_return = false;
  for (size_t i = 0; i < attribute_count; ++i) {
    if (attribute_starts[i] >= count) return CUDA_ERROR_INVALID_VALUE;
    if (i != 0 && attribute_starts[i] <= attribute_starts[i - 1]) return CUDA_ERROR_INVALID_VALUE;
    if (attributes[i].flags & ~CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
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
    if (sizes[i] == 0) return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < count; ++i) {
    RCUDA_RETURN_IF_CUDA_ERROR(cuMemcpyAsync(destinations[i], sources[i], sizes[i], stream));
  }
  return read_before_return ? cuStreamSynchronize(stream) : CUDA_SUCCESS;
}

// Checks the whole batch before it sends the first copy.
CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP* operations,
                                 unsigned long long flags, CUstream stream) {
  RCUDA_RETURN_IF_CUDA_ERROR(check_copy(stream));
  if (count == 0 || !operations || flags != 0 || !stream || stream == CU_STREAM_LEGACY) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (may_capture(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  bool read_before_return = false;
  std::vector<CUDA_MEMCPY3D_PEER> copies(count);
  for (size_t i = 0; i < count; ++i) {
    RCUDA_RETURN_IF_CUDA_ERROR(
        rcuda::cuda::peer_shape(operations[i], element_bytes_of, &copies[i]));
    read_before_return |=
        operations[i].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  }
  for (const CUDA_MEMCPY3D_PEER& copy : copies) {
    RCUDA_RETURN_IF_CUDA_ERROR(copy_shape(copy, stream, false));
  }
  return read_before_return ? cuStreamSynchronize(stream) : CUDA_SUCCESS;
}

}  // extern "C"
