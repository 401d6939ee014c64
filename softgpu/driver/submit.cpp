// submit() and the other functions of operation.h through which entry points reach streams.
#include <utility>

#include "common/interop/default_stream.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/stream.h"

namespace softgpu::driver {

CUresult enter_stream(CUstream handle, Context** context, std::shared_ptr<Stream>* stream) {
  if (CUresult result = check_initialized()) return result;
  if (CUresult result = resolve_stream(handle, stream)) return result;
  *context = &(*stream)->context();
  return (*context)->sticky();
}

CUresult submit(Stream& stream, Operation operation) {
  if (stream.capturing()) return capture_operation(stream, std::move(operation));
  if (CUresult result = refuse_implicit(stream)) return result;
  return stream.enqueue(std::move(operation));
}

CUresult submit(CUstream handle, Operation operation) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(handle, &context, &stream)) return result;
  return submit(*stream, std::move(operation));
}

CUresult submit_and_wait(CUstream handle, Operation operation) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(handle, &context, &stream)) return result;
  if (CUresult result = refuse_on_capturing(*stream)) return result;
  if (CUresult result = refuse_implicit(*stream)) return result;
  return stream->enqueue_and_wait(std::move(operation));
}

CUstream default_stream() {
  return rcuda::interop::per_thread_default_stream() ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

bool is_capturing(CUstream handle) {
  std::shared_ptr<Stream> stream;
  return resolve_stream(handle, &stream) == CUDA_SUCCESS && stream->capturing();
}

}  // namespace softgpu::driver
