// Memset: posted, after the checks that a local driver makes at once.

#include <cuda.h>

#include "client/memory/locate.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

// Whether [destination, destination + the fill) is device-accessible memory of one allocation and
// aligned to the element.
CUresult check_fill(CUdeviceptr destination, size_t pitch, size_t element_bytes, size_t width,
                    size_t height) {
  Target target;
  if (CUresult result = target_current(&target); result != CUDA_SUCCESS) return result;
  if (width == 0 || height == 0) return CUDA_SUCCESS;
  if (destination % element_bytes != 0) return CUDA_ERROR_INVALID_VALUE;
  const size_t row_bytes = width * element_bytes;
  if (height > 1 && (pitch < row_bytes || pitch % element_bytes != 0))
    return CUDA_ERROR_INVALID_VALUE;
  Location location;
  return locate(destination, (height - 1) * pitch + row_bytes, Side::kDevice, &location);
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

extern "C" {

CUresult cuMemsetD8Async(CUdeviceptr destination, unsigned char value, size_t count,
                         CUstream stream) {
  const CUresult result = check_fill(destination, 0, 1, count, 1);
  return result != CUDA_SUCCESS || count == 0
             ? result
             : forward_cuMemsetD8Async(destination, value, count, stream);
}

CUresult cuMemsetD16Async(CUdeviceptr destination, unsigned short value, size_t count,
                          CUstream stream) {
  const CUresult result = check_fill(destination, 0, 2, count, 1);
  return result != CUDA_SUCCESS || count == 0
             ? result
             : forward_cuMemsetD16Async(destination, value, count, stream);
}

CUresult cuMemsetD32Async(CUdeviceptr destination, unsigned value, size_t count, CUstream stream) {
  const CUresult result = check_fill(destination, 0, 4, count, 1);
  return result != CUDA_SUCCESS || count == 0
             ? result
             : forward_cuMemsetD32Async(destination, value, count, stream);
}

CUresult cuMemsetD2D8Async(CUdeviceptr destination, size_t pitch, unsigned char value, size_t width,
                           size_t height, CUstream stream) {
  const CUresult result = check_fill(destination, pitch, 1, width, height);
  return result != CUDA_SUCCESS || width == 0 || height == 0
             ? result
             : forward_cuMemsetD2D8Async(destination, pitch, value, width, height, stream);
}

CUresult cuMemsetD2D16Async(CUdeviceptr destination, size_t pitch, unsigned short value,
                            size_t width, size_t height, CUstream stream) {
  const CUresult result = check_fill(destination, pitch, 2, width, height);
  return result != CUDA_SUCCESS || width == 0 || height == 0
             ? result
             : forward_cuMemsetD2D16Async(destination, pitch, value, width, height, stream);
}

CUresult cuMemsetD2D32Async(CUdeviceptr destination, size_t pitch, unsigned value, size_t width,
                            size_t height, CUstream stream) {
  const CUresult result = check_fill(destination, pitch, 4, width, height);
  return result != CUDA_SUCCESS || width == 0 || height == 0
             ? result
             : forward_cuMemsetD2D32Async(destination, pitch, value, width, height, stream);
}

// A synchronous memset of device memory does not wait either.
CUresult cuMemsetD8_v2(CUdeviceptr destination, unsigned char value, size_t count) {
  return cuMemsetD8Async(destination, value, count, nullptr);
}

CUresult cuMemsetD16_v2(CUdeviceptr destination, unsigned short value, size_t count) {
  return cuMemsetD16Async(destination, value, count, nullptr);
}

CUresult cuMemsetD32_v2(CUdeviceptr destination, unsigned value, size_t count) {
  return cuMemsetD32Async(destination, value, count, nullptr);
}

CUresult cuMemsetD2D8_v2(CUdeviceptr destination, size_t pitch, unsigned char value, size_t width,
                         size_t height) {
  return cuMemsetD2D8Async(destination, pitch, value, width, height, nullptr);
}

CUresult cuMemsetD2D16_v2(CUdeviceptr destination, size_t pitch, unsigned short value, size_t width,
                          size_t height) {
  return cuMemsetD2D16Async(destination, pitch, value, width, height, nullptr);
}

CUresult cuMemsetD2D32_v2(CUdeviceptr destination, size_t pitch, unsigned value, size_t width,
                          size_t height) {
  return cuMemsetD2D32Async(destination, pitch, value, width, height, nullptr);
}

}  // extern "C"
