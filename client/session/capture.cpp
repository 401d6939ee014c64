#include "client/session/capture.h"

#include <atomic>

#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

std::atomic<int> captures{0};

}  // namespace

void capture_begun() { captures.fetch_add(1, std::memory_order_relaxed); }

void capture_ended() { captures.fetch_sub(1, std::memory_order_relaxed); }

bool any_capture() { return captures.load(std::memory_order_relaxed) > 0; }

bool may_capture(CUstream stream) {
  if (!any_capture()) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = forward_cuStreamIsCapturing(stream, &status);
  return result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

}  // namespace rcuda::client
