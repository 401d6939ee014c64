// cuMemset*.
#include <cuda.h>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/copy.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/operation.h"
#include "softgpu/driver/stream.h"

using namespace softgpu::driver;

namespace {

CUresult submit_fill(const FillOperation& operation, CUstream handle) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(handle, &context, &stream)) return result;
  if (CUresult result = check_fill(operation, context->device())) return result;
  // An empty fill does not become a node of a capture.
  const bool is_empty = operation.width_elements == 0 || operation.height == 0;
  if (is_empty && is_capturing(handle)) return CUDA_SUCCESS;
  return submit(*stream, operation);
}

// The functions without Async wait for the fill only if the memory is host memory or has
// CU_POINTER_ATTRIBUTE_SYNC_MEMOPS.
CUresult fill_now(const FillOperation& operation) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (CUresult result = check_fill(operation, context->device())) return result;
  const CUstream stream = default_stream();
  std::shared_ptr<Allocation> allocation = memory_registry().find(operation.destination);
  if (allocation && (allocation->on_host() || allocation->sync_memops)) {
    return submit_and_wait(stream, operation);
  }
  return submit(stream, operation);
}

FillOperation row(CUdeviceptr to, unsigned value, unsigned element_bytes, size_t count) {
  return {to, 0, value, element_bytes, count, 1};
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
  return fill_now(row(to, value, 1, count));
}
CUresult CUDAAPI cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) {
  return fill_now(row(to, value, 2, count));
}
CUresult CUDAAPI cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t count) {
  return fill_now(row(to, value, 4, count));
}
CUresult CUDAAPI cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                                 size_t height) {
  return fill_now({to, pitch, value, 1, width, height});
}
CUresult CUDAAPI cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
                                  size_t height) {
  return fill_now({to, pitch, value, 2, width, height});
}
CUresult CUDAAPI cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned int value, size_t width,
                                  size_t height) {
  return fill_now({to, pitch, value, 4, width, height});
}

CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count,
                                 CUstream stream) {
  return submit_fill(row(to, value, 1, count), stream);
}
CUresult CUDAAPI cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count,
                                  CUstream stream) {
  return submit_fill(row(to, value, 2, count), stream);
}
CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count,
                                  CUstream stream) {
  return submit_fill(row(to, value, 4, count), stream);
}
CUresult CUDAAPI cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                                   size_t height, CUstream stream) {
  return submit_fill({to, pitch, value, 1, width, height}, stream);
}
CUresult CUDAAPI cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value,
                                    size_t width, size_t height, CUstream stream) {
  return submit_fill({to, pitch, value, 2, width, height}, stream);
}
CUresult CUDAAPI cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned int value, size_t width,
                                    size_t height, CUstream stream) {
  return submit_fill({to, pitch, value, 4, width, height}, stream);
}

}  // extern "C"
