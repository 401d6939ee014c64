#include "server/executor/streams/capture.h"

namespace rcuda::server {

CUresult refuse_capture(const api::DriverTable& driver, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver.cuStreamIsCapturing(stream, &status);
  if (result != CUDA_SUCCESS) return result;
  return status == CU_STREAM_CAPTURE_STATUS_NONE ? CUDA_SUCCESS
                                                 : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult query_stream(const api::DriverTable& driver, CUstream stream) {
  const CUresult result = refuse_capture(driver, stream);
  return result == CUDA_SUCCESS ? driver.cuStreamQuery(stream) : result;
}

CUgraph captured_into(const api::DriverTable& driver, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (driver.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
      status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    return nullptr;
  }
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* tips = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  size_t count = 0;
  (void)driver.cuStreamGetCaptureInfo_v3(stream, &status, &id, &graph, &tips, &edges, &count);
  return graph;
}

}  // namespace rcuda::server
