// Handlers of progress: signals, watches, events, destroying a stream, faults.
#include <cstdlib>

#include <signal.h>
#include <unistd.h>

#include "api/server_commands.h"
#include "api/server_handlers.h"
#include "common/base/log.h"
#include "server/executor/answers/answers.h"
#include "server/executor/answers/device_output.h"
#include "server/executor/core/custom.h"
#include "server/executor/core/session_resources.h"
#include "server/executor/objects/objects.h"
#include "server/executor/streams/completions.h"
#include "server/executor/streams/idle.h"

namespace rcuda::server {

HandlerResult signal(StreamServices& services, const Command&, const wire::SignalBody& body) {
  const WordSignal signal{body.word, body.sequence};
  SessionStream stream;
  if (CUresult result = services.objects.use_stream(body.stream, &stream); result != CUDA_SUCCESS) {
    services.answers.signal(signal, result);
  } else {
    services.completions.await(stream, signal);
  }
  return {};
}

HandlerResult watch_event(StreamServices& services, const Command&,
                          const wire::WatchEventBody& body) {
  if (body.waits > 1) return kMalformed;
  services.completions.watch(body.event, {body.word, body.sequence}, body.waits == 1);
  return {};
}

HandlerResult synchronize_context(StreamServices& services, const Command&,
                                  const wire::SignalBody& body) {
  const WordSignal signal{body.word, body.sequence};
  ContextState* context = services.objects.current_context();
  if (!context) {
    services.answers.signal(signal, CUDA_ERROR_INVALID_CONTEXT);
    return {};
  }
  services.idle.when_idle(*context, [&output = services.output, &answers = services.answers,
                                     context, signal](CUresult result) {
    output.flush(*context);
    answers.end_wait(signal, result);
  });
  return {};
}

HandlerResult fault(StreamServices& services, const Command&, const wire::FaultBody& body) {
  if (!services.resources.allow_faults) return CUDA_ERROR_NOT_PERMITTED;
  RCUDA_WARN("the client asked for fault %u", body.kind);
  switch (body.kind) {
    case 1:
      ::_exit(3);
    case 2:
      ::abort();
    case 3:
      // Acts like a machine that hangs: every thread of the process stops, and nothing answers.
      ::raise(SIGSTOP);
      return {};
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult serve_cuEventRecord(StreamServices& services, CUevent hEvent, CUstream hStream) {
  services.completions.forget_event(hEvent);
  return services.driver.cuEventRecord(hEvent, hStream);
}

CUresult serve_cuEventRecordWithFlags(StreamServices& services, CUevent hEvent, CUstream hStream,
                                      unsigned int flags) {
  services.completions.forget_event(hEvent);
  return services.driver.cuEventRecordWithFlags(hEvent, hStream, flags);
}

CUresult serve_cuStreamDestroy_v2(StreamServices& services, CUstream hStream) {
  services.idle.stream_departs(hStream);
  return services.driver.cuStreamDestroy_v2(hStream);
}

}  // namespace rcuda::server
