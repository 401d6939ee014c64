// Stream capture's entry points.
#include <algorithm>
#include <utility>
#include <vector>

#include <cuda.h>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/graph_edit.h"
#include "softgpu/driver/stream.h"

using namespace softgpu::driver;

namespace {

CUresult begin(CUstream handle, CUstreamCaptureMode mode) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(handle, &context, &stream)) return result;
  return begin_capture(*stream, mode, nullptr, {});
}

// The outputs of cuStreamGetCaptureInfo besides status and id. Null pointers are skipped.
struct InfoOut {
  CUgraph* graph = nullptr;
  const CUgraphNode** dependencies = nullptr;
  const CUgraphEdgeData** edge_data = nullptr;
  size_t* count = nullptr;
};

CUresult capture_info(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                      const InfoOut& out) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(handle, &context, &stream)) return result;
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (out.edge_data != nullptr && out.dependencies == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = refuse_implicit(*stream, /*invalidate=*/false)) return result;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!stream->capturing()) return CUDA_SUCCESS;
  std::lock_guard lock(graph_mutex());
  if (stream->capture == nullptr) return CUDA_SUCCESS;
  StreamCapture& capture = *stream->capture;
  if (capture.capture->invalidated) {
    *status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return CUDA_SUCCESS;
  }
  const bool is_lossy = out.dependencies != nullptr && out.edge_data == nullptr;
  for (const GraphEdge& tip : capture.tips) {
    if (is_lossy && !is_default(tip.data)) return CUDA_ERROR_LOSSY_QUERY;
  }
  *status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (id != nullptr) *id = capture.capture->id;
  if (out.graph != nullptr) *out.graph = capture.capture->graph->handle();
  // The arrays stay valid until the next call on the stream, as documented.
  capture.tip_handles.clear();
  capture.tip_edge_data.clear();
  for (const GraphEdge& tip : capture.tips) {
    capture.tip_handles.push_back(tip.node->handle());
    capture.tip_edge_data.push_back(tip.data);
  }
  if (out.dependencies != nullptr) *out.dependencies = capture.tip_handles.data();
  if (out.edge_data != nullptr) *out.edge_data = capture.tip_edge_data.data();
  if (out.count != nullptr) *out.count = capture.tips.size();
  return CUDA_SUCCESS;
}

CUresult update_dependencies(CUstream handle, const CUgraphNode* dependencies,
                             const CUgraphEdgeData* data, size_t count, unsigned flags) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(handle, &context, &stream)) return result;
  if (flags != CU_STREAM_ADD_CAPTURE_DEPENDENCIES && flags != CU_STREAM_SET_CAPTURE_DEPENDENCIES) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::lock_guard lock(graph_mutex());
  if (stream->capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  StreamCapture& capture = *stream->capture;
  if (capture.capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  std::vector<GraphEdge> added;
  if (CUresult result = find_edges(*capture.capture->graph, dependencies, data, count, &added)) {
    return result;
  }
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) capture.tips.clear();
  for (const GraphEdge& edge : added) {
    const bool known = std::any_of(capture.tips.begin(), capture.tips.end(),
                                   [&](const GraphEdge& tip) { return tip.node == edge.node; });
    if (!known) capture.tips.push_back(edge);
  }
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuStreamBeginCapture(CUstream hStream) {
  return begin(hStream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode) {
  return begin(hStream, mode);
}

CUresult CUDAAPI cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph,
                                             const CUgraphNode* dependencies,
                                             const CUgraphEdgeData* dependencyData,
                                             size_t numDependencies, CUstreamCaptureMode mode) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(hStream, &context, &stream)) return result;
  std::shared_ptr<Graph> graph = graph_from_handle(hGraph);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<GraphEdge> tips;
  {
    std::lock_guard lock(graph_mutex());
    if (CUresult result =
            find_edges(*graph, dependencies, dependencyData, numDependencies, &tips)) {
      return result;
    }
  }
  return begin_capture(*stream, mode, std::move(graph), std::move(tips));
}

// With a null `phGraph`, ends the capture and discards the graph.
CUresult CUDAAPI cuStreamEndCapture(CUstream hStream, CUgraph* phGraph) {
  if (phGraph != nullptr) *phGraph = nullptr;
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(hStream, &context, &stream)) return result;
  std::shared_ptr<Graph> graph;
  if (CUresult result = end_capture(*stream, &graph)) return result;
  if (phGraph != nullptr) {
    *phGraph = graph->handle();
  } else {
    std::lock_guard lock(graph_mutex());
    drop_graph(*graph);
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus* captureStatus) {
  return capture_info(hStream, captureStatus, nullptr, {});
}

CUresult CUDAAPI cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus* captureStatus_out,
                                        cuuint64_t* id_out) {
  return capture_info(hStream, captureStatus_out, id_out, {});
}

CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream hStream,
                                           CUstreamCaptureStatus* captureStatus_out,
                                           cuuint64_t* id_out, CUgraph* graph_out,
                                           const CUgraphNode** dependencies_out,
                                           size_t* numDependencies_out) {
  return capture_info(hStream, captureStatus_out, id_out,
                      {graph_out, dependencies_out, nullptr, numDependencies_out});
}

CUresult CUDAAPI cuStreamGetCaptureInfo_v3(CUstream hStream,
                                           CUstreamCaptureStatus* captureStatus_out,
                                           cuuint64_t* id_out, CUgraph* graph_out,
                                           const CUgraphNode** dependencies_out,
                                           const CUgraphEdgeData** edgeData_out,
                                           size_t* numDependencies_out) {
  return capture_info(hStream, captureStatus_out, id_out,
                      {graph_out, dependencies_out, edgeData_out, numDependencies_out});
}

CUresult CUDAAPI cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode* dependencies,
                                                   size_t numDependencies, unsigned int flags) {
  return update_dependencies(hStream, dependencies, nullptr, numDependencies, flags);
}

CUresult CUDAAPI cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode* dependencies,
                                                      const CUgraphEdgeData* dependencyData,
                                                      size_t numDependencies, unsigned int flags) {
  return update_dependencies(hStream, dependencies, dependencyData, numDependencies, flags);
}

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (CUresult result = check_initialized()) return result;
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // Driver 580 accepts any value, and returns it at the next call.
  *mode = exchange_capture_mode(*mode);
  return CUDA_SUCCESS;
}

}  // extern "C"
