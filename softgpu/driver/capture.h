// Stream capture: turns what is submitted to a stream into a graph.
//
// A Capture begins at one stream (its origin) and spreads to every stream that waits for an event
// recorded in it. Each participating stream knows the nodes that its next one will depend on. A
// capture is invalidated by calls that cannot be captured; its streams then refuse work until the
// capture is ended at its origin.
//
// Threads: graph_mutex() guards captures; the functions take it themselves. Modes: a capture
// forbids potentially unsafe calls (check_unsafe_call() in context.h) to its own thread unless it
// is relaxed, and to all threads if it is global; a thread opts out with
// cuThreadExchangeStreamCaptureMode. Results of these functions are compared with driver 580 on an
// H200.
#pragma once

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include <cuda.h>

#include "softgpu/driver/graph.h"

namespace softgpu::driver {

class Stream;

struct Capture {
  uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id owner;
  Stream* origin = nullptr;
  std::shared_ptr<Graph> graph;
  bool own_graph = true;  // false: cuStreamBeginCaptureToGraph
  bool invalidated = false;
  std::vector<std::shared_ptr<Stream>> streams;  // those that take part
  std::vector<GraphEdge> left_tips;              // of those that took part and were destroyed
};

struct StreamCapture {
  std::shared_ptr<Capture> capture;
  std::vector<GraphEdge> tips;           // what the next node depends on
  std::vector<CUgraphNode> tip_handles;  // as cuStreamGetCaptureInfo hands them out
  std::vector<CUgraphEdgeData> tip_edge_data;
};

CUresult begin_capture(Stream& stream, CUstreamCaptureMode mode, std::shared_ptr<Graph> into,
                       std::vector<GraphEdge> tips);
// `*graph` is null unless the result is CUDA_SUCCESS.
CUresult end_capture(Stream& stream, std::shared_ptr<Graph>* graph);
// The stream is being destroyed: it leaves its capture, which is over if it began there.
void end_capture_of(Stream& stream);

// Adds `operation` as a node of the stream's capture. CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, or
// _UNSUPPORTED (which invalidates) for what cannot be captured; _INVALID_VALUE for freeing what the
// graph frees already. `*node` is optional.
CUresult capture_operation(Stream& stream, Operation operation, GraphNode** node = nullptr);
// An argument check failed while the stream was capturing: that spoils the capture, too.
void invalidate_capture_of(Stream& stream);

// cuEventRecord and cuStreamWaitEvent on capturing streams, or on events recorded in a capture.
// `*handled` is false when capture is not concerned and the caller goes on as usual.
CUresult capture_event_record(Stream& stream, Event& event, bool* handled);
CUresult capture_event_wait(Stream& stream, Event& event, bool* handled);
// For cuEventQuery, cuEventSynchronize and cuEventElapsedTime: CUDA_ERROR_CAPTURED_EVENT while the
// capture goes on (and, but for the last, is invalidated), CUDA_ERROR_INVALID_VALUE afterwards.
CUresult check_not_captured(Event& event, bool invalidate = true);

// Waiting for or asking after `stream` while it captures: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
// and the capture is invalid.
CUresult refuse_on_capturing(Stream& stream);
// The legacy stream may not be used while a blocking stream of its context captures:
// CUDA_ERROR_STREAM_CAPTURE_IMPLICIT; `invalidate` spoils those captures.
CUresult refuse_implicit(Stream& stream, bool invalidate = true);
// cuCtxSynchronize: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED while any stream of the context captures.
CUresult refuse_context_wait(Context& context);

// cuThreadExchangeStreamCaptureMode
CUstreamCaptureMode exchange_capture_mode(CUstreamCaptureMode mode);

}  // namespace softgpu::driver
