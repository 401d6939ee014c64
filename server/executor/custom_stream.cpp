// Custom commands about progress: ping, signals, watches, faults.
#include <cstdlib>

#include <signal.h>
#include <unistd.h>

#include "api/server_commands.h"
#include "api/server_handlers.h"
#include "common/base/log.h"
#include "server/executor/custom.h"

namespace rcuda::server {

HandlerResult ping(Executor&, const Command&) { return {}; }

HandlerResult signal(Executor& executor, const Command&, const wire::SignalBody& body) {
  const WordSignal signal{body.word, body.sequence};
  StreamRef stream;
  if (CUresult result = executor.find_stream(body.stream, &stream); result != CUDA_SUCCESS) {
    executor.signal(signal, result);
  } else {
    executor.completions().add(stream, signal, true);
  }
  return {};
}

HandlerResult watch_event(Executor& executor, const Command&, const wire::WatchEventBody& body) {
  if (body.waits > 1) return kMalformed;
  executor.completions().watch(body.event, {body.word, body.sequence}, body.waits == 1);
  return {};
}

HandlerResult synchronize_context(Executor& executor, const Command&,
                                  const wire::SignalBody& body) {
  const WordSignal signal{body.word, body.sequence};
  ContextState* context = executor.current_context();
  if (!context) {
    executor.signal(signal, CUDA_ERROR_INVALID_CONTEXT);
    return {};
  }
  executor.when_idle(*context, [&executor, context, signal](CUresult result) {
    executor.flush_output(*context);
    executor.signal(signal, result);
  });
  return {};
}

HandlerResult fault(Executor& executor, const Command&, const wire::FaultBody& body) {
  if (!executor.resources().allow_faults) return {CUDA_ERROR_NOT_PERMITTED, false, false};
  RCUDA_WARN("the client asked for fault %u", body.kind);
  switch (body.kind) {
    case 1:
      ::_exit(3);
    case 2:
      ::abort();
    case 3:
      // As a machine that hangs: every thread of the process stops, and nothing answers any more.
      ::raise(SIGSTOP);
      return {};
    default:
      return {CUDA_ERROR_INVALID_VALUE, false, false};
  }
}

CUresult serve_cuEventRecord(Executor& executor, CUevent hEvent, CUstream hStream) {
  if (executor.driver().cuEventRecord == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  executor.completions().forget_event(hEvent);
  return executor.driver().cuEventRecord(hEvent, hStream);
}

CUresult serve_cuEventRecordWithFlags(Executor& executor, CUevent hEvent, CUstream hStream,
                                      unsigned int flags) {
  if (executor.driver().cuEventRecordWithFlags == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  executor.completions().forget_event(hEvent);
  return executor.driver().cuEventRecordWithFlags(hEvent, hStream, flags);
}

CUresult serve_cuCtxRecordEvent(Executor& executor, CUcontext hCtx, CUevent hEvent) {
  if (executor.driver().cuCtxRecordEvent == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  executor.completions().forget_event(hEvent);
  return executor.driver().cuCtxRecordEvent(hCtx, hEvent);
}

CUresult serve_cuStreamDestroy_v2(Executor& executor, CUstream hStream) {
  if (executor.driver().cuStreamDestroy_v2 == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  executor.stream_departs(hStream);
  return executor.driver().cuStreamDestroy_v2(hStream);
}

}  // namespace rcuda::server
