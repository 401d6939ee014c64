// Memset: posted, after the checks that a local driver makes at once.

#include <optional>

#include <cuda.h>

#include "client/memory/locate.h"
#include "client/session/capture.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

// What is filled: rows of elements, as cuMemsetD2D* takes them.
struct Fill {
  CUdeviceptr destination;
  size_t pitch, element_bytes, width, height;
};

// Whether it is device-accessible memory of one allocation and aligned to the element.
CUresult check(const Fill& fill, Location* location) {
  if (fill.destination % fill.element_bytes != 0) return CUDA_ERROR_INVALID_VALUE;
  const size_t row_bytes = fill.width * fill.element_bytes;
  if (fill.height > 1 && (fill.pitch < row_bytes || fill.pitch % fill.element_bytes != 0))
    return CUDA_ERROR_INVALID_VALUE;
  return locate(fill.destination, (fill.height - 1) * fill.pitch + row_bytes, Side::kDevice,
                location);
}

template <typename Forward>
CUresult fill_by(const Fill& fill, CUstream stream, const Forward& forward) {
  Target target;
  if (CUresult result = target_for_work(stream, &target); result != CUDA_SUCCESS) return result;
  if (fill.width == 0 || fill.height == 0) return CUDA_SUCCESS;
  Location location;
  if (CUresult result = check(fill, &location); result != CUDA_SUCCESS) return result;
  wire::ObjectId id = 0;
  if (CUresult result = resolve_unused(stream, &target, &id); result != CUDA_SUCCESS) return result;
  // Whether a stream may fill another device's memory is for the driver to say, at once. Another
  // server's memory no stream can reach.
  std::optional<CaptureAnswers> answers;
  if (location.home == Home::kDevice && location.owner.device != target.device) {
    if (location.owner.session != target.session) return CUDA_ERROR_INVALID_VALUE;
    answers.emplace(true);
  }
  return forward();
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

extern "C" {

CUresult cuMemsetD8Async(CUdeviceptr destination, unsigned char value, size_t count,
                         CUstream stream) {
  return fill_by({destination, 0, 1, count, 1}, stream,
                 [&] { return forward_cuMemsetD8Async(destination, value, count, stream); });
}

CUresult cuMemsetD16Async(CUdeviceptr destination, unsigned short value, size_t count,
                          CUstream stream) {
  return fill_by({destination, 0, 2, count, 1}, stream,
                 [&] { return forward_cuMemsetD16Async(destination, value, count, stream); });
}

CUresult cuMemsetD32Async(CUdeviceptr destination, unsigned value, size_t count, CUstream stream) {
  return fill_by({destination, 0, 4, count, 1}, stream,
                 [&] { return forward_cuMemsetD32Async(destination, value, count, stream); });
}

CUresult cuMemsetD2D8Async(CUdeviceptr destination, size_t pitch, unsigned char value, size_t width,
                           size_t height, CUstream stream) {
  return fill_by({destination, pitch, 1, width, height}, stream, [&] {
    return forward_cuMemsetD2D8Async(destination, pitch, value, width, height, stream);
  });
}

CUresult cuMemsetD2D16Async(CUdeviceptr destination, size_t pitch, unsigned short value,
                            size_t width, size_t height, CUstream stream) {
  return fill_by({destination, pitch, 2, width, height}, stream, [&] {
    return forward_cuMemsetD2D16Async(destination, pitch, value, width, height, stream);
  });
}

CUresult cuMemsetD2D32Async(CUdeviceptr destination, size_t pitch, unsigned value, size_t width,
                            size_t height, CUstream stream) {
  return fill_by({destination, pitch, 4, width, height}, stream, [&] {
    return forward_cuMemsetD2D32Async(destination, pitch, value, width, height, stream);
  });
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
