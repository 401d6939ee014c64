#include "client/route/capture.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "client/objects/stream.h"
#include "common/base/mutex.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

struct Capture {
  const Stream* origin;
  CUstreamCaptureMode mode;
  std::thread::id owner;
};

Mutex captures_mutex;
std::vector<Capture>& captures() RCUDA_REQUIRES(captures_mutex) {
  static auto* instance = new std::vector<Capture>;
  return *instance;
}
thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
thread_local int questions = 0;

bool is_of(const Capture& capture, const Context& context) {
  return capture.origin->session == context.session && capture.origin->context == context.id;
}

// Invalidates the captures for which `concerned` returns true. Returns whether there were any.
template <typename Concerned>
bool invalidate(const Concerned& concerned) {
  std::vector<const Stream*> origins;
  {
    MutexLock lock(captures_mutex);
    for (const Capture& capture : captures()) {
      if (concerned(capture)) origins.push_back(capture.origin);
    }
  }
  for (const Stream* origin : origins) {
    invalidate_capture(reinterpret_cast<CUstream>(const_cast<Stream*>(origin)));
  }
  return !origins.empty();
}

template <typename Gone>
void remove_if(const Gone& gone) {
  MutexLock lock(captures_mutex);
  std::erase_if(captures(), gone);
  set_captures(static_cast<int>(captures().size()));
}

}  // namespace

void capture_begun(const Stream* origin, CUstreamCaptureMode mode) {
  MutexLock lock(captures_mutex);
  captures().push_back({origin, mode, std::this_thread::get_id()});
  set_captures(static_cast<int>(captures().size()));
}

void capture_ended(const Stream* origin) {
  if (!any_capture()) return;
  remove_if([=](const Capture& capture) { return capture.origin == origin; });
}

void captures_lost(const Context& context) {
  if (!any_capture()) return;
  remove_if([&](const Capture& capture) { return is_of(capture, context); });
}

bool may_end_capture(const Stream* origin) {
  MutexLock lock(captures_mutex);
  return std::none_of(captures().begin(), captures().end(), [=](const Capture& capture) {
    return capture.origin == origin && capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
           capture.owner != std::this_thread::get_id();
  });
}

bool may_capture(CUstream stream) {
  if (!any_capture()) return false;
  const StreamQuestion question;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = forward_cuStreamIsCapturing(stream, &status);
  return result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult exchange_capture_mode(CUstreamCaptureMode* mode) {
  if (!mode) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, thread_mode);
  return CUDA_SUCCESS;
}

CUresult check_unsafe_call() {
  if (!any_capture() || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  const bool forbidden = invalidate([](const Capture& capture) {
    const bool own = capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
                     capture.owner == std::this_thread::get_id();
    const bool everybody = capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                           thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    return own || everybody;
  });
  return forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult check_context_wait(const Context& context) {
  if (!any_capture()) return CUDA_SUCCESS;
  const bool forbidden =
      invalidate([&](const Capture& capture) { return is_of(capture, context); });
  return forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult check_legacy_stream() {
  if (!any_capture() || questions > 0) return CUDA_SUCCESS;
  const StreamQuestion question;
  // If a capturing stream synchronises with the legacy stream, drivers also refuse this query, and
  // invalidate the captures.
  const CUresult result = forward_cuStreamQuery(CU_STREAM_LEGACY);
  return result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ? result : CUDA_SUCCESS;
}

void invalidate_capture(CUstream stream) {
  if (!any_capture()) return;
  const StreamQuestion question;
  // A query of a capturing stream is forbidden and invalidates its capture.
  (void)forward_cuStreamQuery(stream);
}

StreamQuestion::StreamQuestion() { ++questions; }
StreamQuestion::~StreamQuestion() { --questions; }

}  // namespace rcuda::client
