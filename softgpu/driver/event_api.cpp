// cuEvent*, cuStreamWaitEvent, cuCtxRecordEvent, cuCtxWaitEvent and the IPC handles of events.
#include <utility>

#include <cuda.h>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/event.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/interprocess_event.h"
#include "softgpu/driver/pools.h"
#include "softgpu/driver/stream.h"

using namespace softgpu::driver;

namespace {

constexpr unsigned kEventFlags =
    CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

CUresult find_event(CUevent handle, std::shared_ptr<Event>* event) {
  // As with streams, no context needs to be current.
  if (CUresult result = check_initialized()) return result;
  *event = event_from_handle(handle);
  return *event == nullptr ? CUDA_ERROR_INVALID_HANDLE : (*event)->context().sticky();
}

// The operation that records `event`. An interprocess event counts as pending from now on.
EventRecordOperation begin_recording(const std::shared_ptr<Event>& event,
                                     const std::shared_ptr<EventRecord>& record) {
  EventRecordOperation operation{event, record};
  if (event->interprocess != nullptr) {
    operation.interprocess_value = event->interprocess->begin_recording();
  }
  return operation;
}

CUresult record_now(Stream& stream, const std::shared_ptr<Event>& event) {
  bool handled = false;
  if (CUresult result = capture_event_record(stream, *event, &handled); handled) return result;
  if (CUresult result = refuse_implicit(stream)) return result;
  auto record = std::make_shared<EventRecord>();
  if (CUresult result = stream.enqueue(begin_recording(event, record), {}, &record->point)) {
    return result;
  }
  event->captured.store(false);
  event->set_record(std::move(record));
  return CUDA_SUCCESS;
}

CUresult record_event(CUevent handle, CUstream stream_handle, unsigned flags) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(stream_handle, &context, &stream)) return result;
  const std::shared_ptr<Event> event = event_from_handle(handle);
  if (event == nullptr || &event->context() != &stream->context().owner())
    return CUDA_ERROR_INVALID_HANDLE;
  if ((flags & ~CU_EVENT_RECORD_EXTERNAL) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_EVENT_RECORD_EXTERNAL) == 0) return record_now(*stream, event);
  return capture_operation(*stream, EventRecordOperation{event});
}

CUresult wait_event(CUstream stream_handle, CUevent handle, unsigned flags) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(stream_handle, &context, &stream)) return result;
  const std::shared_ptr<Event> event = event_from_handle(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if ((flags & ~CU_EVENT_WAIT_EXTERNAL) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_EVENT_WAIT_EXTERNAL) != 0) {
    return capture_operation(*stream, EventWaitOperation{event});
  }
  bool handled = false;
  if (CUresult result = capture_event_wait(*stream, *event, &handled); handled) return result;
  if (CUresult result = refuse_implicit(*stream)) return result;
  if (event->interprocess != nullptr) {
    const uint64_t target = event->interprocess->recorded();
    if (event->interprocess->reached(target)) return CUDA_SUCCESS;
    return stream->enqueue(InterprocessWaitOperation{event->interprocess, target});
  }
  const auto record = event->record();
  if (record == nullptr || record->complete()) return CUDA_SUCCESS;
  return stream->enqueue(EmptyOperation{}, {record->point});
}

bool is_complete(const Event& event) {
  if (event.interprocess != nullptr) {
    return event.interprocess->reached(event.interprocess->recorded());
  }
  const auto record = event.record();
  return record == nullptr || record->complete();
}

CUresult elapsed_time(float* milliseconds, CUevent start, CUevent end) {
  std::shared_ptr<Event> from, to;
  if (CUresult result = find_event(start, &from)) return result;
  if (CUresult result = find_event(end, &to)) return result;
  for (const auto& event : {from, to}) {
    // Unlike cuEventQuery, cuEventElapsedTime leaves the capture valid.
    if (CUresult result = check_not_captured(*event, /*invalidate=*/false)) return result;
  }
  if (&from->context().device() != &to->context().device()) return CUDA_ERROR_INVALID_HANDLE;
  const auto first = from->record();
  const auto second = to->record();
  if (!from->has_timing() || !to->has_timing() || first == nullptr || second == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!first->complete() || !second->complete()) return CUDA_ERROR_NOT_READY;
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_HANDLE;  // as driver 580
  const int64_t ns = second->time_ns.load(std::memory_order_relaxed) -
                     first->time_ns.load(std::memory_order_relaxed);
  *milliseconds = static_cast<float>(static_cast<double>(ns) / 1e6);
  return CUDA_SUCCESS;
}

CUresult destroy_event(CUevent handle) {
  std::shared_ptr<Event> event;
  if (CUresult result = find_event(handle, &event)) return result;
  handle_table<Event>().remove(handle);
  return CUDA_SUCCESS;
}

CUresult live_context(CUcontext handle, std::shared_ptr<Context>* context) {
  *context = Context::from_handle(handle);
  if (*context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!(*context)->alive()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return (*context)->sticky();
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuEventCreate(CUevent* phEvent, unsigned int Flags) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (phEvent == nullptr || (Flags & ~kEventFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  const bool interprocess = (Flags & CU_EVENT_INTERPROCESS) != 0;
  if (interprocess && (Flags & CU_EVENT_DISABLE_TIMING) == 0) return CUDA_ERROR_INVALID_VALUE;
  auto event = std::make_shared<Event>(context->shared_from_this(), Flags);
  if (interprocess) {
    event->interprocess = InterprocessEvent::create();
    if (event->interprocess == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *phEvent = event->handle();
  handle_table<Event>().insert(std::move(event));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventDestroy(CUevent hEvent) { return destroy_event(hEvent); }
CUresult CUDAAPI cuEventDestroy_v2(CUevent hEvent) { return destroy_event(hEvent); }

CUresult CUDAAPI cuEventRecord(CUevent hEvent, CUstream hStream) {
  return record_event(hEvent, hStream, CU_EVENT_RECORD_DEFAULT);
}

CUresult CUDAAPI cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags) {
  return record_event(hEvent, hStream, flags);
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags) {
  return wait_event(hStream, hEvent, Flags);
}

CUresult CUDAAPI cuEventQuery(CUevent hEvent) {
  std::shared_ptr<Event> event;
  if (CUresult result = find_event(hEvent, &event)) return result;
  if (CUresult result = check_not_captured(*event)) return result;
  if (CUresult result = check_unsafe_call()) return result;
  return is_complete(*event) ? event->context().sticky() : CUDA_ERROR_NOT_READY;
}

CUresult CUDAAPI cuEventSynchronize(CUevent hEvent) {
  std::shared_ptr<Event> event;
  if (CUresult result = find_event(hEvent, &event)) return result;
  if (CUresult result = check_not_captured(*event)) return result;
  if (CUresult result = check_unsafe_call()) return result;
  if (event->interprocess != nullptr) {
    event->interprocess->wait(event->interprocess->recorded(), &event->context());
  } else if (const auto record = event->record()) {
    record->point.wait();
  }
  observe_frees(event->context().device());
  return event->context().sticky();
}

CUresult CUDAAPI cuEventElapsedTime(float* pMilliseconds, CUevent hStart, CUevent hEnd) {
  return elapsed_time(pMilliseconds, hStart, hEnd);
}

CUresult CUDAAPI cuEventElapsedTime_v2(float* pMilliseconds, CUevent hStart, CUevent hEnd) {
  return elapsed_time(pMilliseconds, hStart, hEnd);
}

CUresult CUDAAPI cuIpcGetEventHandle(CUipcEventHandle* pHandle, CUevent event) {
  std::shared_ptr<Event> found;
  if (CUresult result = find_event(event, &found)) return result;
  if (pHandle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (found->interprocess == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return found->interprocess->get_handle(pHandle);
}

CUresult CUDAAPI cuIpcOpenEventHandle(CUevent* phEvent, CUipcEventHandle handle) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (phEvent == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<InterprocessEvent> shared;
  if (CUresult result = InterprocessEvent::open(handle, &shared)) return result;
  auto event = std::make_shared<Event>(context->shared_from_this(),
                                       CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
  event->interprocess = std::move(shared);
  *phEvent = event->handle();
  handle_table<Event>().insert(std::move(event));
  return CUDA_SUCCESS;
}

// The event completes when all earlier work of the context has completed.
CUresult CUDAAPI cuCtxRecordEvent(CUcontext hCtx, CUevent hEvent) {
  if (CUresult result = check_initialized()) return result;
  std::shared_ptr<Context> context;
  if (CUresult result = live_context(hCtx, &context)) return result;
  const std::shared_ptr<Event> event = event_from_handle(hEvent);
  if (event == nullptr || &event->context() != &context->owner()) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult result = refuse_context_wait(*context)) return result;
  auto record = std::make_shared<EventRecord>();
  if (CUresult result =
          streams_of(*context).record_all(begin_recording(event, record), &record->point)) {
    return result;
  }
  event->captured.store(false);
  event->set_record(std::move(record));
  return CUDA_SUCCESS;
}

// All later work of the context waits for the event.
CUresult CUDAAPI cuCtxWaitEvent(CUcontext hCtx, CUevent hEvent) {
  if (CUresult result = check_initialized()) return result;
  std::shared_ptr<Context> context;
  if (CUresult result = live_context(hCtx, &context)) return result;
  const std::shared_ptr<Event> event = event_from_handle(hEvent);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult result = refuse_context_wait(*context)) return result;
  if (event->interprocess != nullptr) {
    const uint64_t target = event->interprocess->recorded();
    if (event->interprocess->reached(target)) return CUDA_SUCCESS;
    return streams_of(*context).wait_in_all(InterprocessWaitOperation{event->interprocess, target});
  }
  const auto record = event->record();
  if (record == nullptr || record->complete()) return CUDA_SUCCESS;
  return streams_of(*context).wait_in_all(EmptyOperation{}, {record->point});
}

}  // extern "C"
