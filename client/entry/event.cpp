// Events. Records are posted. Timelines and completion words answer queries (event_state.h).

#include <chrono>
#include <thread>

#include <cuda.h>

#include "api/opcodes.h"
#include "client/objects/arena.h"
#include "client/process/process.h"
#include "client/route/capture.h"
#include "client/route/find_route.h"
#include "client/session/news.h"
#include "client/session/timeline.h"
#include "client/session/wait.h"
#include "common/cuda/return_if_error.h"
#include "common/wire/codec.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

constexpr unsigned kEventFlags =
    CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

CUresult find_event(CUevent handle, Event** event) {
  return resolve_object(handle, event, CUDA_ERROR_INVALID_HANDLE);
}

// Ends a call that has found an event's record done, or has waited for it. After success, finishes
// a Wait (wait.h), which shows the host what the GPU wrote before the record, unless an earlier
// wait has already done so. `record`: from EventState::progress(); 0: note nothing.
CUresult finished(Event& event, uint64_t record, CUresult result) {
  if (result != CUDA_SUCCESS) return result;
  if (event.state.is_fetched()) return event.session->take_error();
  result = Wait(route_of(event)).finish();
  if (result == CUDA_SUCCESS && record != 0) event.state.note_fetched(record);
  return result;
}

// Returns the error if captures forbid a query of the event, or a wait for it. A captured event
// allows neither, and only the worker knows whether an event is captured.
CUresult check_captures(CUevent handle) {
  if (!any_capture()) return CUDA_SUCCESS;
  const CUresult result = forward_cuEventQuery(handle);
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) return result;
  return check_unsafe_call();
}

CUresult send_record(Event& event, const StreamRoute& route, unsigned flags) {
  EventState::Recording recording(event.state);
  wire::Encoder body;
  body.value(event.id);
  body.value(route.id);
  if (flags) body.value(flags);
  const auto opcode =
      flags ? rcuda::api::Opcode::cuEventRecordWithFlags : rcuda::api::Opcode::cuEventRecord;
  const CaptureAnswers answers;
  SentCommand sent;
  const CUresult result =
      route.session->post(route, {opcode, body.body()}, transport::Wake::kYes, &sent);
  if (result != CUDA_SUCCESS) {
    recording.failed();
    return result;
  }
  // A captured record is a graph node and has no position yet.
  if (route.timeline && !any_capture()) {
    recording.is_at(*route.timeline, sent.position, sent.number);
  }
  return route.session->take_error();
}

CUresult record(CUevent handle, CUstream stream, unsigned flags) {
  Event* event;
  RCUDA_RETURN_IF_CUDA_ERROR(find_event(handle, &event));
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute route, find_paced_stream(stream));
  if (route.session != event->session ||
      (route.context != event->context && owning_context_id(route) != event->context)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (flags) event->state.leave_to_worker();  // each launch of the graph records the event
  const CUresult result = send_record(*event, route, flags);
  if (result != CUDA_SUCCESS || !(event->flags & CU_EVENT_INTERPROCESS)) return result;
  // After this call, the application may notify another process, which then queries its own worker.
  // So this worker must have recorded the event before the call returns.
  const CUresult state = forward_cuEventQuery(handle);
  return state == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : state;
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

extern "C" {

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  RCUDA_RETURN_IF_CUDA_ERROR(check_current());
  if (!event || (flags & ~kEventFlags)) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  RCUDA_RETURN_IF_CUDA_ERROR(forward_cuEventCreate(event, flags));
  auto* created = find<Event>(*event);
  created->flags = flags;
  // Every process that has opened the event may record it, so only the worker knows its state.
  if (flags & CU_EVENT_INTERPROCESS) created->state.leave_to_worker();
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent handle) {
  Event* event;
  RCUDA_RETURN_IF_CUDA_ERROR(find_event(handle, &event));
  return forward_cuEventDestroy_v2(handle);
}

CUresult cuEventRecord(CUevent event, CUstream stream) { return record(event, stream, 0); }

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  if (flags & ~unsigned{CU_EVENT_RECORD_EXTERNAL}) return CUDA_ERROR_INVALID_VALUE;
  // An external record exists only as a graph node. Driver 580 and softgpu refuse it in a stream
  // that does not capture.
  if (flags && find<Event>(event) && !may_capture(stream)) {
    return CUDA_ERROR_ILLEGAL_STATE;
  }
  return record(event, stream, flags);
}

CUresult cuEventQuery(CUevent handle) {
  Event* event;
  RCUDA_RETURN_IF_CUDA_ERROR(find_event(handle, &event));
  Session& session = *event->session;
  CUresult result = check_captures(handle);
  if (result != CUDA_SUCCESS) return result;
  uint64_t record = 0;
  switch (event->state.progress(&record, &result)) {
    case Progress::kPending:
      if (session.lost()) return kSessionLost;
      session.mirrors().show_writes(true);
      return CUDA_ERROR_NOT_READY;
    case Progress::kDone:
      return finished(*event, record, result);
    case Progress::kUnknown:
      break;
  }
  const uint64_t news = News::count();
  const EventState::Place place = event->state.place();
  result = place.timeline ? event->state.query(place) : forward_cuEventQuery(handle);
  if (result == CUDA_ERROR_NOT_READY) {
    event->state.found_pending(record, news);
    session.mirrors().show_writes(true);
  }
  if (result != CUDA_SUCCESS) return result;
  event->state.found_done(record);
  return finished(*event, record, result);
}

CUresult cuEventSynchronize(CUevent handle) {
  Event* event;
  RCUDA_RETURN_IF_CUDA_ERROR(find_event(handle, &event));
  Session& session = *event->session;
  CUresult result = check_captures(handle);
  if (result != CUDA_SUCCESS) return result;
  if (event->flags & CU_EVENT_INTERPROCESS) {
    while ((result = forward_cuEventQuery(handle)) == CUDA_ERROR_NOT_READY) {
      session.mirrors().show_writes(true);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (result != CUDA_SUCCESS) return result;
    News::add();
    return finished(*event, 0, result);
  }
  uint64_t record = 0;
  if (event->state.progress(&record, &result) == Progress::kDone) {
    return finished(*event, record, result);
  }
  return event->state.wait();
}

CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  Event *first, *second;
  RCUDA_RETURN_IF_CUDA_ERROR(find_event(start, &first));
  RCUDA_RETURN_IF_CUDA_ERROR(find_event(end, &second));
  if ((first->flags | second->flags) & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
  if (!milliseconds) return CUDA_ERROR_INVALID_HANDLE;  // as in driver 580
  return forward_cuEventElapsedTime_v2(milliseconds, start, end);
}

CUresult cuCtxRecordEvent(CUcontext context, CUevent handle) {
  Event* event;
  RCUDA_RETURN_IF_CUDA_ERROR(find_event(handle, &event));
  // The record is in all streams of the context, so it has no position in one timeline.
  const EventState::Recording recording(event->state);
  const CaptureAnswers answers;
  return forward_cuCtxRecordEvent(context, handle);
}

CUresult cuCtxWaitEvent(CUcontext context, CUevent handle) {
  Event* event;
  RCUDA_RETURN_IF_CUDA_ERROR(find_event(handle, &event));
  const CaptureAnswers answers;
  return forward_cuCtxWaitEvent(context, handle);
}

// ---- records that graphs make ------------------------------------------------------------------

CUresult cuGraphAddEventRecordNode(CUgraphNode* node, CUgraph graph,
                                   const CUgraphNode* dependencies, size_t count, CUevent event) {
  if (!event) return CUDA_ERROR_INVALID_VALUE;
  if (auto* recorded = find<Event>(event)) recorded->state.leave_to_worker();
  return forward_cuGraphAddEventRecordNode(node, graph, dependencies, count, event);
}

CUresult cuGraphAddEventWaitNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                 size_t count, CUevent event) {
  if (!event) return CUDA_ERROR_INVALID_VALUE;
  return forward_cuGraphAddEventWaitNode(node, graph, dependencies, count, event);
}

CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event) {
  if (auto* recorded = find<Event>(event)) recorded->state.leave_to_worker();
  return forward_cuGraphEventRecordNodeSetEvent(node, event);
}

CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec executable, CUgraphNode node,
                                            CUevent event) {
  if (auto* recorded = find<Event>(event)) recorded->state.leave_to_worker();
  return forward_cuGraphExecEventRecordNodeSetEvent(executable, node, event);
}

}  // extern "C"
