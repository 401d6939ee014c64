#include "server/executor/streams/pool_frees.h"

#include "server/executor/streams/capture.h"

namespace rcuda::server {

void PoolFrees::synchronize_if_idle(CUstream stream) {
  // Only this thread queues work on the stream, so the stream is still idle in the second call.
  if (query_stream(driver_, stream) == CUDA_SUCCESS) driver_.cuStreamSynchronize(stream);
}

void PoolFrees::reached(ContextState& context, CUevent event, bool has_stream, CUstream stream) {
  if (!any_ || holds_stream_()) return;
  // Shows the driver that the work before the event is done, even if the stream has more work.
  if (event) driver_.cuEventSynchronize(event);
  if (!has_stream) return;
  ContextState* const before = objects_.current_context();
  if (objects_.make_current(context.id) == CUDA_SUCCESS) synchronize_if_idle(stream);
  if (before) objects_.make_current(before->id);
}

void PoolFrees::reached_all() {
  if (!any_ || holds_stream_()) return;
  synchronize_if_idle(nullptr);
  objects_.of(wire::Kind::kStream).for_each([&](wire::ObjectId, const Object& object) {
    synchronize_if_idle(static_cast<CUstream>(object.handle));
  });
}

}  // namespace rcuda::server
