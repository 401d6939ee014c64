// Streams: queries that the client answers, waits, and the state of captures. Creation, destruction
// and all commands in a stream use the generated forward_ functions.

#include <vector>

#include <cuda.h>

#include "api/opcodes.h"
#include "client/copy/peer.h"
#include "client/objects/arena.h"
#include "client/objects/named.h"
#include "client/process/process.h"
#include "client/route/capture.h"
#include "client/route/find_route.h"
#include "client/session/news.h"
#include "client/session/timelines.h"
#include "client/session/wait.h"
#include "common/base/thread_object.h"
#include "common/cuda/return_if_error.h"
#include "common/wire/codec.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

// Returns the route of a stream for a call that only queries the stream (StreamQuestion).
CudaResult<StreamRoute> view_stream(CUstream stream) {
  const StreamQuestion question;
  return find_stream_route(stream);
}

// The first query has room for this many nodes. A capturing stream seldom depends on more; if it
// does, the client queries the worker again.
constexpr size_t kUsualDependencies = 64;
constexpr size_t kMostDependencies = 16u << 10;  // more than a reply can hold

// Asks the worker whether the stream is done. Does not call forward_cuStreamQuery(), which would
// count as a command in the stream.
CUresult ask_stream(const StreamRoute& view) {
  wire::Encoder body;
  body.value(view.id);
  Reply reply;
  return call(view.session->in_context(view.context),
              {rcuda::api::Opcode::cuStreamQuery, body.body()}, 0, &reply);
}

// Clamps the priority to the valid range, as cuStreamCreateWithPriority documents.
int priority_in_range(const Session& session, int priority) {
  const int least = static_cast<int>(session.welcome().priority_least);
  const int greatest = session.welcome().priority_greatest;
  return priority > least ? least : priority < greatest ? greatest : priority;
}

// Gets the stream's object, or null for the legacy stream, which cannot capture.
CUresult find_origin(CUstream stream, Stream** origin) {
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute view, view_stream(stream));
  *origin = view.stream;
  return CUDA_SUCCESS;
}

// Returns the error if captures forbid a wait for a stream, or a query of it. Sets `capturing` if
// the stream itself captures: the caller then sends the call to the worker, which refuses it.
CUresult check_wait(CUstream stream, const StreamRoute& view, bool* capturing) {
  *capturing = false;
  if (!any_capture()) return CUDA_SUCCESS;
  if (!view.stream) {
    RCUDA_RETURN_IF_CUDA_ERROR(check_legacy_stream());
  } else if (may_capture(stream)) {
    *capturing = true;
    return CUDA_SUCCESS;
  }
  return check_unsafe_call();
}

// Returns CUDA_SUCCESS if all work of the stream is done, otherwise CUDA_ERROR_NOT_READY or an
// error. Not for the legacy default stream. After CUDA_SUCCESS, the caller must finish a Wait.
CUresult query(const StreamRoute& view) {
  Session& session = *view.session;
  Timeline& timeline = *view.stream->timeline;
  const uint64_t position = timeline.sent();
  CUresult result = CUDA_SUCCESS;
  switch (timeline.progress(position, &result)) {
    case Progress::kPending:
      return session.lost() ? kSessionLost : CUDA_ERROR_NOT_READY;
    case Progress::kDone:
      return result;
    case Progress::kUnknown:
      break;
  }
  const uint64_t news = News::count();
  result = ask_stream(view);
  if (result == CUDA_ERROR_NOT_READY) timeline.found_busy(news);
  if (result == CUDA_SUCCESS) timeline.advance(position);
  return result;
}

// Begins a capture. `begin` starts it in the worker, in relaxed mode; the client itself enforces
// the application's `mode`.
template <typename Begin>
CUresult begin_capture(CUstream stream, CUstreamCaptureMode mode, const Begin& begin) {
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Stream* origin;
  RCUDA_RETURN_IF_CUDA_ERROR(find_origin(stream, &origin));
  const StreamQuestion question;
  const CUresult result = begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  if (result == CUDA_SUCCESS) capture_begun(origin, mode);
  return result;
}

// Stores flags and priority in the object of a new stream.
void adorn(CUstream stream, unsigned flags, int priority) {
  auto* object = find<Stream>(stream);
  object->flags = flags;
  object->priority = priority;
  object->timeline->set_with_legacy(flags & CU_STREAM_NON_BLOCKING ? Timeline::WithLegacy::kNo
                                                                   : Timeline::WithLegacy::kYes);
}

CUresult create_stream(CUstream* stream, unsigned flags, int priority) {
  RCUDA_ASSIGN_OR_RETURN(const Route route, find_current_route());
  if (!stream || (flags & ~unsigned{CU_STREAM_NON_BLOCKING})) return CUDA_ERROR_INVALID_VALUE;
  const int clamped = priority_in_range(*route.session, priority);
  Context* const current = current_context().get();
  CUresult result;
  if (current && current->green) {
    // A driver makes a stream of the green context, which is non-blocking (580 on an H100).
    flags |= CU_STREAM_NON_BLOCKING;
    result =
        forward_rcuda_green_stream(reinterpret_cast<CUcontext>(current), flags, clamped, stream);
  } else {
    result = forward_cuStreamCreateWithPriority(stream, flags, clamped);
  }
  if (result != CUDA_SUCCESS) return result;
  adorn(*stream, flags, clamped);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace
namespace wire = rcuda::wire;

extern "C" {

CUresult cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx green, unsigned flags, int priority) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  const auto* context = find<Context>(green);
  if (!context || !context->green) return CUDA_ERROR_INVALID_CONTEXT;
  if (!stream || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  const int clamped = priority_in_range(*context->session, priority);
  const CUresult result =
      forward_rcuda_green_stream(reinterpret_cast<CUcontext>(green), flags, clamped, stream);
  if (result == CUDA_SUCCESS) adorn(*stream, flags, clamped);
  return result;
}

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return create_stream(stream, flags, 0);
}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  return create_stream(stream, flags, priority);
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  const auto* object = find<Stream>(stream);
  if (!object) return CUDA_ERROR_INVALID_HANDLE;
  capture_ended(object);  // if a capture began on it
  if (!any_capture()) object->timeline->mark_end();
  return forward_cuStreamDestroy_v2(stream);
}

CUresult cuStreamGetPriority(CUstream stream, int* priority) {
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute view, view_stream(stream));
  if (!priority) return CUDA_ERROR_INVALID_VALUE;
  *priority = view.stream ? view.stream->priority : 0;
  return CUDA_SUCCESS;
}

CUresult cuStreamSetAttribute(CUstream stream, CUstreamAttrID attribute,
                              const CUstreamAttrValue* value) {
  const CUresult result = forward_cuStreamSetAttribute(stream, attribute, value);
  if (result != CUDA_SUCCESS || attribute != CU_STREAM_ATTRIBUTE_PRIORITY) return result;
  if (const auto view = view_stream(stream); view && view->stream) {
    view->stream->priority = priority_in_range(*view->session, value->priority);
  }
  return result;
}

CUresult cuStreamGetFlags(CUstream stream, unsigned* flags) {
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute view, view_stream(stream));
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  *flags = view.stream ? view.stream->flags : 0;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute view, view_stream(stream));
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  // Each context has one legacy default stream, so the context's serial identifies it.
  *id = view.stream ? view.stream->serial : current_context().handle()->serial;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute view, view_stream(stream));
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  *context = reinterpret_cast<CUcontext>(context_of(view));
  return CUDA_SUCCESS;
}

// For a stream of a green context, *green becomes this context and *context its primary context.
CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext* context, CUgreenCtx* green) {
  // In _v2, both outputs are optional.
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute view, view_stream(stream));
  Context* const found = context_of(view);
  if (context) *context = reinterpret_cast<CUcontext>(&owning_context(*found));
  if (green) *green = found->green ? reinterpret_cast<CUgreenCtx>(found) : nullptr;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetGreenCtx(CUstream stream, CUgreenCtx* green) {
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute view, view_stream(stream));
  if (!green) return CUDA_ERROR_INVALID_VALUE;
  Context* const found = context_of(view);
  *green = found->green ? reinterpret_cast<CUgreenCtx>(found) : nullptr;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetDevice(CUstream stream, CUdevice* device) {
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute view, view_stream(stream));
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  *device = static_cast<CUdevice>(view.device);
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute view, view_stream(stream));
  bool capturing;
  RCUDA_RETURN_IF_CUDA_ERROR(check_wait(stream, view, &capturing));
  if (capturing) return forward_cuStreamQuery(stream);
  return synchronize(view);
}

CUresult cuStreamQuery(CUstream stream) {
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute view, view_stream(stream));
  bool capturing;
  RCUDA_RETURN_IF_CUDA_ERROR(check_wait(stream, view, &capturing));
  if (capturing) return forward_cuStreamQuery(stream);
  Session& session = *view.session;
  const CUresult result = view.stream ? query(view) : ask_stream(view);
  if (result == CUDA_ERROR_NOT_READY) session.mirrors().show_writes(true);
  return result == CUDA_SUCCESS ? Wait(view).finish() : result;
}

// ---- capture -----------------------------------------------------------------------------------

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture(stream, mode, [=](CUstreamCaptureMode relaxed) {
    return forward_cuStreamBeginCapture_v2(stream, relaxed);
  });
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                     const CUgraphNode* dependencies, const CUgraphEdgeData* edges,
                                     size_t count, CUstreamCaptureMode mode) {
  return begin_capture(stream, mode, [=](CUstreamCaptureMode relaxed) {
    return forward_cuStreamBeginCaptureToGraph(stream, graph, dependencies, edges, count, relaxed);
  });
}

// If the capture was invalidated, it ends without a graph, and *graph becomes null.
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  if (graph) *graph = nullptr;
  Stream* origin;
  RCUDA_RETURN_IF_CUDA_ERROR(find_origin(stream, &origin));
  const StreamQuestion question;
  const bool is_mine = may_end_capture(origin);
  CUgraph captured = nullptr;
  const CUresult result = forward_cuStreamEndCapture(stream, graph ? &captured : nullptr);
  // The errors below mean that no capture ended. With any other error, such as that of an
  // invalidated or unjoined capture, the capture has ended.
  if (result != CUDA_ERROR_ILLEGAL_STATE && result != CUDA_ERROR_INVALID_HANDLE &&
      result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD &&
      result != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED && result != CUDA_ERROR_INVALID_VALUE) {
    capture_ended(origin);
  }
  if (is_mine || result != CUDA_SUCCESS) {
    if (graph) *graph = captured;
    return result;
  }
  // As with a local driver, the capture has ended and its graph is lost.
  if (captured) (void)cuGraphDestroy(captured);
  return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  const StreamQuestion question;
  if (any_capture()) return forward_cuStreamIsCapturing(stream, status);
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute view, view_stream(stream));
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

// The status is always written. The other outputs are optional, and written only if the stream
// captures.
CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode** dependencies,
                                   const CUgraphEdgeData** edges, size_t* count) {
  if (!any_capture()) {
    RCUDA_ASSIGN_OR_RETURN(const StreamRoute view, view_stream(stream));
    if (!status || (edges && !dependencies)) return CUDA_ERROR_INVALID_VALUE;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  }
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  const StreamQuestion question;
  // A driver owns the returned arrays; they stay valid until the stream's next operation. Here the
  // thread owns them.
  auto& nodes = rcuda::of_this_thread<std::vector<CUgraphNode>>();
  auto& edge_data = rcuda::of_this_thread<std::vector<CUgraphEdgeData>>();
  cuuint64_t found_id = 0;
  CUgraph found_graph = nullptr;
  size_t found = kUsualDependencies, room;
  do {
    room = found;
    nodes.assign(room, nullptr);
    edge_data.resize(room);
    const CUresult result = forward_rcuda_stream_capture_info(
        stream, status, &found_id, graph ? &found_graph : nullptr,
        dependencies ? nodes.data() : nullptr, edges ? edge_data.data() : nullptr, &found);
    if (result != CUDA_SUCCESS || *status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return result;
    if (found > kMostDependencies) return CUDA_ERROR_NOT_SUPPORTED;
  } while (dependencies && found > room);
  // The last node is missing if there are more dependencies than a reply can hold.
  if (dependencies && found > 0 && !nodes[found - 1]) return CUDA_ERROR_NOT_SUPPORTED;
  if (id) *id = found_id;
  if (graph) *graph = found_graph;
  if (dependencies) *dependencies = nodes.data();
  if (edges) *edges = edge_data.data();
  if (count) *count = found;
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  return exchange_capture_mode(mode);
}

// ---- events and contexts -----------------------------------------------------------------------

CUresult cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned flags) {
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute view, view_stream(stream));
  auto* event = find<Event>(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (flags & ~unsigned{CU_EVENT_WAIT_EXTERNAL}) return CUDA_ERROR_INVALID_VALUE;
  // An external wait exists only as a graph node.
  if ((flags & CU_EVENT_WAIT_EXTERNAL) && !may_capture(stream)) return CUDA_ERROR_ILLEGAL_STATE;
  if (!view.stream) {
    RCUDA_RETURN_IF_CUDA_ERROR(check_legacy_stream());
  }
  if (event->session == view.session) {
    const CaptureAnswers answers;  // the stream may join a capture, or break its rules
    return forward_cuStreamWaitEvent(stream, handle, flags);
  }
  return wait_across_servers(stream, view, handle, *event);
}

}  // extern "C"
