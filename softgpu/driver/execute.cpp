// Executes operations. Streams and graphs both execute all their operations here.
#include <chrono>
#include <thread>

#include "softgpu/driver/context.h"
#include "softgpu/driver/event.h"
#include "softgpu/driver/host_callback.h"
#include "softgpu/driver/interprocess_event.h"
#include "softgpu/driver/memop.h"
#include "softgpu/driver/stream.h"

namespace softgpu::driver {
namespace {

struct Executor {
  Context& context;

  CUresult operator()(const EmptyOperation&) { return CUDA_SUCCESS; }
  CUresult operator()(const KernelOperation& operation) {
    return execute_kernel(context, operation);
  }
  CUresult operator()(const CopyOperation& operation) { return execute_copy(context, operation); }
  CUresult operator()(const FillOperation& operation) { return execute_fill(context, operation); }
  CUresult operator()(const HostOperation& operation) {
    run_host_operation(operation, CUDA_SUCCESS);
    return CUDA_SUCCESS;
  }
  CUresult operator()(const MemOpOperation& operation) {
    return execute_mem_ops(context, operation);
  }
  CUresult operator()(const AllocateOperation& operation) {
    return execute_allocate(context, operation);
  }
  CUresult operator()(const FreeOperation& operation) { return execute_free(context, operation); }
  CUresult operator()(const InterprocessWaitOperation& operation) {
    operation.event->wait(operation.target, &context);
    return CUDA_SUCCESS;
  }
  // Not called: execute_operation(), Stream and GraphRun handle these operations.
  CUresult operator()(const EventRecordOperation&) { return CUDA_SUCCESS; }
  CUresult operator()(const EventWaitOperation&) { return CUDA_SUCCESS; }
  CUresult operator()(const ChildGraphOperation&) { return CUDA_SUCCESS; }
  CUresult operator()(const ConditionalOperation&) { return CUDA_SUCCESS; }
  CUresult operator()(const GraphLaunchOperation&) { return CUDA_SUCCESS; }
};

}  // namespace

CUresult execute_operation(Context& context, const Operation& operation) {
  if (const auto* record = std::get_if<EventRecordOperation>(&operation)) {
    record->record->time_ns.store(now_ns(), std::memory_order_relaxed);
    if (record->event->interprocess != nullptr) {
      record->event->interprocess->complete(record->interprocess_value);
    }
    return CUDA_SUCCESS;
  }
  CUresult result = context.sticky();
  if (result == CUDA_SUCCESS && context.stopping().load(std::memory_order_relaxed)) {
    result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  if (result != CUDA_SUCCESS) {
    // Callbacks of cuStreamAddCallback are called with the error; everything else is dropped.
    const auto* host = std::get_if<HostOperation>(&operation);
    if (host != nullptr && host->callback != nullptr) run_host_operation(*host, result);
    return result;
  }
  result = std::visit(Executor{context}, operation);
  if (result != CUDA_SUCCESS) context.fail(result, "an asynchronous operation failed");
  return result;
}

void wait_unless_stopping(const Point& point, Context& context) {
  if (point.reached()) return;
  // Polls, because point.wait() would not end if another context never reaches the point. `context`
  // must still be able to end.
  auto pause = std::chrono::microseconds(10);
  while (!point.reached() && !context.stopping().load(std::memory_order_relaxed)) {
    std::this_thread::sleep_for(pause);
    if (pause < std::chrono::milliseconds(1)) pause *= 2;
  }
}

}  // namespace softgpu::driver
