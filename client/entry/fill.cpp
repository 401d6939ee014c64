// Memset. The command is posted after the checks that a local driver makes in the call. A function
// without Async waits only if the host can access the memory or if the memory has
// CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, as CUDA documents.

#include <optional>

#include <cuda.h>

#include "client/copy/locate.h"
#include "client/hostmem/host_memory.h"
#include "client/mirror/mirror.h"
#include "client/route/capture.h"
#include "client/session/wait.h"
#include "common/cuda/return_if_error.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

// The area that is filled: rows of elements, as in cuMemsetD2D*.
struct Fill {
  CUdeviceptr destination;
  size_t pitch, element_bytes, width, height;
  bool synchronous = false;
};

// Finds the area's memory. Checks that it lies in one allocation that the device can access, and
// that it is aligned to the element.
CUresult check(const Fill& fill, Location* location) {
  if (fill.destination % fill.element_bytes != 0) return CUDA_ERROR_INVALID_VALUE;
  size_t row_bytes, bytes;
  if (__builtin_mul_overflow(fill.width, fill.element_bytes, &row_bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (fill.height > 1 && (fill.pitch < row_bytes || fill.pitch % fill.element_bytes != 0))
    return CUDA_ERROR_INVALID_VALUE;
  if (__builtin_mul_overflow(fill.height - 1, fill.pitch, &bytes) ||
      __builtin_add_overflow(bytes, row_bytes, &bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return locate(fill.destination, bytes, Side::kDevice, location);
}

template <typename Forward>
CUresult fill_by(const Fill& fill, CUstream stream, const Forward& forward) {
  RCUDA_RETURN_IF_CUDA_ERROR(find_work_route(stream).result());
  if (fill.width == 0 || fill.height == 0) return CUDA_SUCCESS;
  Location location;
  RCUDA_RETURN_IF_CUDA_ERROR(check(fill, &location));
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute route, find_stream_route(stream));
  // The worker's driver decides whether a stream may fill another device's memory. The client waits
  // for the answer, because this call must return a refusal. No stream can reach another server's
  // memory.
  std::optional<CaptureAnswers> answers;
  if (location.home == Home::kDevice && location.owner->device != route.device) {
    if (location.owner->session != route.session) return CUDA_ERROR_INVALID_VALUE;
    answers.emplace(true);
  }
  const bool visible = location.home != Home::kDevice ||
                       is_mirrored(*route.session, fill.destination, 1);  // managed memory
  if (visible) {
    RCUDA_RETURN_IF_CUDA_ERROR(mirror_for(route, stream, fill.destination));
  }
  const CUresult result = forward();
  const bool waits = fill.synchronous && (visible || location.sync_memops) && !may_capture(stream);
  return result == CUDA_SUCCESS && waits ? synchronize(route) : result;
}

// Begins to mirror page-locked memory that a memset node fills, because each launch of the graph
// writes to the worker's copy of the memory.
void mirror_filled(const CUDA_MEMSET_NODE_PARAMS* fill) {
  const auto route = find_any_route();  // the command that follows returns the error
  if (fill && route) mirror_reachable(*route, reinterpret_cast<const void*>(fill->dst));
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

CUresult cuMemsetD8_v2(CUdeviceptr destination, unsigned char value, size_t count) {
  return fill_by({destination, 0, 1, count, 1, true}, nullptr,
                 [&] { return forward_cuMemsetD8Async(destination, value, count, nullptr); });
}

CUresult cuMemsetD16_v2(CUdeviceptr destination, unsigned short value, size_t count) {
  return fill_by({destination, 0, 2, count, 1, true}, nullptr,
                 [&] { return forward_cuMemsetD16Async(destination, value, count, nullptr); });
}

CUresult cuMemsetD32_v2(CUdeviceptr destination, unsigned value, size_t count) {
  return fill_by({destination, 0, 4, count, 1, true}, nullptr,
                 [&] { return forward_cuMemsetD32Async(destination, value, count, nullptr); });
}

CUresult cuMemsetD2D8_v2(CUdeviceptr destination, size_t pitch, unsigned char value, size_t width,
                         size_t height) {
  return fill_by({destination, pitch, 1, width, height, true}, nullptr, [&] {
    return forward_cuMemsetD2D8Async(destination, pitch, value, width, height, nullptr);
  });
}

CUresult cuMemsetD2D16_v2(CUdeviceptr destination, size_t pitch, unsigned short value, size_t width,
                          size_t height) {
  return fill_by({destination, pitch, 2, width, height, true}, nullptr, [&] {
    return forward_cuMemsetD2D16Async(destination, pitch, value, width, height, nullptr);
  });
}

CUresult cuMemsetD2D32_v2(CUdeviceptr destination, size_t pitch, unsigned value, size_t width,
                          size_t height) {
  return fill_by({destination, pitch, 4, width, height, true}, nullptr, [&] {
    return forward_cuMemsetD2D32Async(destination, pitch, value, width, height, nullptr);
  });
}

// ---- memset nodes ------------------------------------------------------------------------------

CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                              size_t count, const CUDA_MEMSET_NODE_PARAMS* fill,
                              CUcontext context) {
  mirror_filled(fill);
  return forward_cuGraphAddMemsetNode(node, graph, dependencies, count, fill, context);
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* fill) {
  mirror_filled(fill);
  return forward_cuGraphMemsetNodeSetParams(node, fill);
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                        const CUDA_MEMSET_NODE_PARAMS* fill, CUcontext context) {
  mirror_filled(fill);
  return forward_cuGraphExecMemsetNodeSetParams(executable, node, fill, context);
}

}  // extern "C"
