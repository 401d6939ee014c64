#include "server/executor/answers/device_output.h"

namespace rcuda::server {

// A driver writes out device printf during a synchronisation. Synchronising an idle stream is
// enough, because all work whose output must appear is already done.
void DeviceOutput::synchronize_and_drain(ContextState& context) {
  ContextState* const before = objects_.current_context();
  if (objects_.make_current(context.id) == CUDA_SUCCESS) {
    if (!context.idle_stream) {
      driver_.cuStreamCreate(&context.idle_stream, CU_STREAM_NON_BLOCKING);
    }
    if (context.idle_stream) driver_.cuStreamSynchronize(context.idle_stream);
  }
  if (before) objects_.make_current(before->id);
  drain();
}

void DeviceOutput::drain() {
  if (capture_) capture_->drain();
}

}  // namespace rcuda::server
