#include "server/executor/pool_frees.h"

#include "api/server_handlers.h"
#include "server/executor/executor.h"
#include "server/executor/peers.h"

namespace rcuda::server {

void PoolFrees::synchronize_if_idle(CUstream stream) {
  const api::DriverTable& driver = executor_.driver();
  // To ask a stream in capture, or the legacy one beside it, would end the capture.
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!driver.cuStreamIsCapturing || driver.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
      status != CU_STREAM_CAPTURE_STATUS_NONE) {
    return;
  }
  // Nobody else gives the stream work, so it stays idle until the wait has found it so.
  if (driver.cuStreamQuery(stream) == CUDA_SUCCESS) driver.cuStreamSynchronize(stream);
}

void PoolFrees::reached(ContextState& context, CUevent event, bool has_stream, CUstream stream) {
  if (!any_ || executor_.peers().holding()) return;
  // The event of itself tells the driver of what was before it, also when the stream has more to
  // do.
  if (event) executor_.driver().cuEventSynchronize(event);
  if (!has_stream) return;
  ContextState* const before = executor_.current_context();
  if (executor_.make_current(context.id) == CUDA_SUCCESS) synchronize_if_idle(stream);
  if (before) executor_.make_current(before->id);
}

void PoolFrees::reached_all() {
  if (!any_ || executor_.peers().holding()) return;
  synchronize_if_idle(nullptr);
  executor_.objects(wire::Kind::kStream).for_each([&](wire::ObjectId, const Object& object) {
    synchronize_if_idle(static_cast<CUstream>(object.handle));
  });
}

CUresult serve_cuMemFreeAsync(Executor& executor, CUdeviceptr dptr, CUstream hStream) {
  const auto free = executor.driver().cuMemFreeAsync;
  if (free == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  executor.completions().pool_frees().note();
  return free(dptr, hStream);
}

CUresult serve_cuMemPoolTrimTo(Executor& executor, CUmemoryPool pool, size_t minBytesToKeep) {
  const auto trim = executor.driver().cuMemPoolTrimTo;
  if (trim == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  executor.completions().pool_frees().reached_all();
  return trim(pool, minBytesToKeep);
}

}  // namespace rcuda::server
