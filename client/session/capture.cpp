#include "client/session/capture.h"

#include <atomic>
#include <utility>

#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

std::atomic<int> captures{0};
std::atomic<int> global_captures{0};
// Captures that the thread began and that are not relaxed, which only it may end.
thread_local int own_captures = 0;
thread_local int own_global_captures = 0;
thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

}  // namespace

void capture_begun(CUstreamCaptureMode mode) {
  captures.fetch_add(1, std::memory_order_relaxed);
  if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) return;
  ++own_captures;
  if (mode != CU_STREAM_CAPTURE_MODE_GLOBAL) return;
  ++own_global_captures;
  global_captures.fetch_add(1, std::memory_order_relaxed);
}

void capture_ended() {
  captures.fetch_sub(1, std::memory_order_relaxed);
  if (own_captures == 0) return;  // a relaxed one
  --own_captures;
  if (own_global_captures == 0) return;
  --own_global_captures;
  global_captures.fetch_sub(1, std::memory_order_relaxed);
}

bool any_capture() { return captures.load(std::memory_order_relaxed) > 0; }

bool may_capture(CUstream stream) {
  if (!any_capture()) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = forward_cuStreamIsCapturing(stream, &status);
  return result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult exchange_capture_mode(CUstreamCaptureMode* mode) {
  if (!mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::swap(*mode, thread_mode);
  return CUDA_SUCCESS;
}

CUresult check_unsafe_call() {
  if (!any_capture() || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  const bool forbidden = own_captures > 0 || (thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                              global_captures.load(std::memory_order_relaxed) > 0);
  return forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

}  // namespace rcuda::client
