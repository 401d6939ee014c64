// Handlers of commands that report progress: of a stream, an event or a context.
#include "api/server_commands.h"
#include "server/executor/answers/answers.h"
#include "server/executor/answers/device_output.h"
#include "server/executor/core/custom.h"
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
  if (body.purpose > wire::WatchFor::kQuery) return kMalformed;
  services.completions.watch(body.event, {body.word, body.sequence}, body.purpose);
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

}  // namespace rcuda::server
