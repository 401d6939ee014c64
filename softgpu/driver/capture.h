// Stream capture: turns work that is submitted to a stream into a graph.
//
// A Capture begins at one stream (its origin) and spreads to every stream that waits for an event
// recorded in it. Each of these streams holds the nodes that its next node will depend on. A call
// that cannot be captured invalidates the capture; its streams then refuse work until the capture
// is ended at its origin.
//
// Threads: graph_mutex() guards captures, and the functions lock it themselves. Modes: a global
// capture forbids potentially unsafe calls (check_unsafe_call() in context.h) to all threads, a
// thread-local capture to its own thread, and a relaxed capture to no thread. A thread opts out
// with cuThreadExchangeStreamCaptureMode. The results of these functions were compared with driver
// 580 on an H200.
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
  std::vector<std::shared_ptr<Stream>> streams;  // the streams of the capture
  std::vector<GraphEdge> left_tips;              // StreamCapture::tips of its destroyed streams
};

struct StreamCapture {
  std::shared_ptr<Capture> capture;
  std::vector<GraphEdge> tips;           // dependencies of the next node
  std::vector<CUgraphNode> tip_handles;  // as returned by cuStreamGetCaptureInfo
  std::vector<CUgraphEdgeData> tip_edge_data;
};

CUresult begin_capture(Stream& stream, CUstreamCaptureMode mode, std::shared_ptr<Graph> into,
                       std::vector<GraphEdge> tips);
// `*graph` is null unless the result is CUDA_SUCCESS.
CUresult end_capture(Stream& stream, std::shared_ptr<Graph>* graph);
// The stream is being destroyed: it leaves its capture. If the stream is the capture's origin, the
// capture ends.
void end_capture_of(Stream& stream);

// Adds `operation` as a node of the stream's capture. CUDA_ERROR_STREAM_CAPTURE_INVALIDATED if the
// capture is invalid; _UNSUPPORTED, which also invalidates, if the operation cannot be captured;
// _INVALID_VALUE for a free of memory that the graph already frees. `node` may be null.
CUresult capture_operation(Stream& stream, Operation operation, GraphNode** node = nullptr);
// Invalidates the stream's capture, if there is one. For calls whose argument check failed.
void invalidate_capture_of(Stream& stream);

// cuEventRecord and cuStreamWaitEvent on capturing streams, or on events recorded in a capture.
// Sets `*handled` to false if no capture is involved; the caller then continues as usual.
CUresult capture_event_record(Stream& stream, Event& event, bool* handled);
CUresult capture_event_wait(Stream& stream, Event& event, bool* handled);
// For cuEventQuery, cuEventSynchronize and cuEventElapsedTime: CUDA_ERROR_CAPTURED_EVENT while the
// event's capture lasts, CUDA_ERROR_INVALID_VALUE afterwards. `invalidate`: also invalidates the
// capture.
CUresult check_not_captured(Event& event, bool invalidate = true);

// For a wait on or a query of `stream` while it captures: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
// the capture becomes invalid.
CUresult refuse_on_capturing(Stream& stream);
// For a use of the legacy stream while a blocking stream of its context captures:
// CUDA_ERROR_STREAM_CAPTURE_IMPLICIT. `invalidate`: those captures become invalid.
CUresult refuse_implicit(Stream& stream, bool invalidate = true);
// For cuCtxSynchronize, cuCtxRecordEvent and cuCtxWaitEvent: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
// while any stream of the context captures; those captures become invalid.
CUresult refuse_context_wait(Context& context);

// cuThreadExchangeStreamCaptureMode
CUstreamCaptureMode exchange_capture_mode(CUstreamCaptureMode mode);

}  // namespace softgpu::driver
