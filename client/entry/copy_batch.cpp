// cuMemcpyBatchAsync: copies that may run in any order. Here they run in the given one, each on its
// own best way; the attributes' hints of place and overlap change nothing over a network.

#include <cuda.h>

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

}  // extern "C"
