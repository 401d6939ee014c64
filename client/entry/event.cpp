// Events: records are posted; progress comes from completion words (progress.h).

#include <chrono>
#include <thread>

#include <cuda.h>

#include "client/memory/mirror.h"
#include "client/objects/arena.h"
#include "client/session/capture.h"
#include "client/session/marshal.h"
#include "client/session/process.h"
#include "client/session/progress.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

constexpr unsigned kEventFlags =
    CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

CUresult find_event(CUevent handle, Event** event) {
  if (CUresult result = Process::get().check(); result != CUDA_SUCCESS) return result;
  *event = find<Event>(handle);
  return *event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// What a call returns that found, or made sure, that an event's work is done; the session has
// learned it.
CUresult finished(Session& session, CUresult result) {
  if (result == CUDA_SUCCESS) result = pull_mirrors(session);
  return result == CUDA_SUCCESS ? session.take_error() : result;
}

CUresult record(CUevent handle, CUstream stream, unsigned flags) {
  Event* event;
  if (CUresult result = find_event(handle, &event); result != CUDA_SUCCESS) return result;
  Target target;
  wire::ObjectId id;
  if (CUresult result = resolve_unused(stream, &target, &id); result != CUDA_SUCCESS) return result;
  if (target.session != event->session || target.context != event->context) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  // Counted before it is posted: whoever polls meanwhile asks again rather than takes an old
  // answer. And after: what he was told may be older than the record.
  event->progress.uses.fetch_add(1, std::memory_order_acq_rel);
  const CaptureAnswers answers;
  const CUresult result = flags ? forward_cuEventRecordWithFlags(handle, stream, flags)
                                : forward_cuEventRecord(handle, stream);
  event->progress.uses.fetch_add(1, std::memory_order_acq_rel);
  if (result != CUDA_SUCCESS || !(event->flags & CU_EVENT_INTERPROCESS)) return result;
  // Another process may be told at once, and asks its own worker: this one has to have recorded by
  // then.
  const CUresult state = forward_cuEventQuery(handle);
  return state == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : state;
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

extern "C" {

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  Target target;
  if (CUresult result = target_current(&target); result != CUDA_SUCCESS) return result;
  if (!event || (flags & ~kEventFlags)) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult result = forward_cuEventCreate(event, flags);
  if (result != CUDA_SUCCESS) return result;
  find<Event>(*event)->flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent handle) {
  Event* event;
  if (CUresult result = find_event(handle, &event); result != CUDA_SUCCESS) return result;
  return forward_cuEventDestroy_v2(handle);
}

CUresult cuEventRecord(CUevent event, CUstream stream) { return record(event, stream, 0); }

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  if (flags & ~unsigned{CU_EVENT_RECORD_EXTERNAL}) return CUDA_ERROR_INVALID_VALUE;
  // An external record is a node of a graph; softgpu refuses it elsewhere as driver 580 does.
  if (flags && find<Event>(event) && !may_capture(stream)) {
    return CUDA_ERROR_ILLEGAL_STATE;
  }
  return record(event, stream, flags);
}

CUresult cuEventQuery(CUevent handle) {
  Event* event;
  if (CUresult result = find_event(handle, &event); result != CUDA_SUCCESS) return result;
  const uint64_t state = event_state(*event);
  Session& session = *event->session;
  CUresult result = CUDA_SUCCESS;
  if (any_capture()) {
    // An event of a capture cannot be asked for; only the worker knows.
    result = forward_cuEventQuery(handle);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) return result;
    if (CUresult forbidden = check_unsafe_call(); forbidden != CUDA_SUCCESS) return forbidden;
  }
  // Its records are counted by every process that has it open, so only the worker knows.
  if (event->flags & CU_EVENT_INTERPROCESS) {
    result = forward_cuEventQuery(handle);
    if (result != CUDA_SUCCESS) return result;
    session.learn();
    return finished(session, result);
  }
  switch (progress_of(session, *event, state, &result)) {
    case Progress::kPending:
      return session.lost() ? kSessionLost : CUDA_ERROR_NOT_READY;
    case Progress::kDone:
      return finished(session, result);
    case Progress::kUnknown:
      break;
  }
  const uint64_t learned = session.learned();
  result = forward_cuEventQuery(handle);
  if (result == CUDA_ERROR_NOT_READY) watch_event(session, *event, state, learned);
  if (result != CUDA_SUCCESS) return result;
  note_finished(session, event->progress, state);
  return finished(session, result);
}

CUresult cuEventSynchronize(CUevent handle) {
  Event* event;
  if (CUresult result = find_event(handle, &event); result != CUDA_SUCCESS) return result;
  Session& session = *event->session;
  const uint64_t state = event_state(*event);
  CUresult result = CUDA_SUCCESS;
  if (any_capture()) {
    // An event of a capture cannot be waited for; only the worker knows.
    result = forward_cuEventQuery(handle);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) return result;
    if (CUresult forbidden = check_unsafe_call(); forbidden != CUDA_SUCCESS) return forbidden;
  }
  if (event->flags & CU_EVENT_INTERPROCESS) {
    while ((result = forward_cuEventQuery(handle)) == CUDA_ERROR_NOT_READY) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (result != CUDA_SUCCESS) return result;
    session.learn();
    return finished(session, result);
  }
  if (state != 0 && progress_of(session, *event, state, &result) == Progress::kDone) {
    return finished(session, result);
  }
  result = await_event(session, *event);
  if (result == CUDA_SUCCESS) note_finished(session, event->progress, state);
  return finished(session, result);
}

CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  Event *first, *second;
  if (CUresult result = find_event(start, &first); result != CUDA_SUCCESS) return result;
  if (CUresult result = find_event(end, &second); result != CUDA_SUCCESS) return result;
  if ((first->flags | second->flags) & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
  if (!milliseconds) return CUDA_ERROR_INVALID_HANDLE;  // as driver 580
  return forward_cuEventElapsedTime_v2(milliseconds, start, end);
}

CUresult cuCtxRecordEvent(CUcontext context, CUevent handle) {
  Event* event;
  if (CUresult result = find_event(handle, &event); result != CUDA_SUCCESS) return result;
  event->progress.uses.fetch_add(1, std::memory_order_acq_rel);
  const CaptureAnswers answers;
  const CUresult result = forward_cuCtxRecordEvent(context, handle);
  event->progress.uses.fetch_add(1, std::memory_order_acq_rel);
  return result;
}

CUresult cuCtxWaitEvent(CUcontext context, CUevent handle) {
  Event* event;
  if (CUresult result = find_event(handle, &event); result != CUDA_SUCCESS) return result;
  const CaptureAnswers answers;
  return forward_cuCtxWaitEvent(context, handle);
}

}  // extern "C"
