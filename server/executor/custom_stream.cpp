// The table of custom commands, and those about progress: ping, signals, watches, faults.
#include <cstdlib>

#include <signal.h>
#include <unistd.h>

#include "api/server_handlers.h"
#include "common/base/log.h"
#include "server/executor/custom.h"

namespace rcuda::server {

CustomHandler custom_handler(uint16_t opcode) {
  switch (static_cast<wire::Custom>(opcode)) {
    case wire::Custom::kPing:
      return &ping;
    case wire::Custom::kSignal:
      return &signal;
    case wire::Custom::kWatchEvent:
      return &watch_event;
    case wire::Custom::kSynchronizeContext:
      return &synchronize_context;
    case wire::Custom::kCopyInline:
      return &copy_inline;
    case wire::Custom::kCopyToReply:
      return &copy_to_reply;
    case wire::Custom::kCopyStaged:
      return &copy_staged;
    case wire::Custom::kCopy:
      return &copy;
    case wire::Custom::kCopyShape:
      return &copy_shape;
    case wire::Custom::kLaunch:
      return &launch;
    case wire::Custom::kLaunchHost:
      return &launch_host;
    case wire::Custom::kImageQuery:
      return &image_query;
    case wire::Custom::kImageChunk:
      return &image_chunk;
    case wire::Custom::kModuleLoad:
      return &module_load;
    case wire::Custom::kLibraryLoad:
      return &library_load;
    case wire::Custom::kFunctionInfo:
      return &function_info;
    case wire::Custom::kHostExpose:
      return &host_expose;
    case wire::Custom::kHostUnexpose:
      return &host_unexpose;
    case wire::Custom::kMirror:
      return &mirror;
    case wire::Custom::kUnmirror:
      return &unmirror;
    case wire::Custom::kMirrorFetch:
      return &mirror_fetch;
    case wire::Custom::kPeerIntroduce:
      return &peer_introduce;
    case wire::Custom::kPeerCopy:
      return &peer_copy;
    case wire::Custom::kPeerSignal:
      return &peer_signal;
    case wire::Custom::kPeerAwait:
      return &peer_await;
    case wire::Custom::kPeerPlan:
      return &peer_plan;
    case wire::Custom::kFault:
      return &fault;
    default:
      return nullptr;
  }
}

HandlerResult ping(Executor&, const Command&, std::vector<std::byte>*) { return {}; }

HandlerResult signal(Executor& executor, const Command& command, std::vector<std::byte>*) {
  BodyReader in(command.body);
  wire::SignalBody body;
  if (!in.read(&body) || !word_exists(body.word)) return kMalformed;
  const WordSignal signal{body.word, body.sequence};
  StreamRef stream;
  if (CUresult result = executor.find_stream(body.stream, &stream); result != CUDA_SUCCESS) {
    executor.signal(signal, result);
  } else {
    executor.completions().add(stream, signal, true);
  }
  return {};
}

HandlerResult watch_event(Executor& executor, const Command& command, std::vector<std::byte>*) {
  BodyReader in(command.body);
  wire::WatchEventBody body;
  if (!in.read(&body) || !word_exists(body.word) || body.waits > 1) return kMalformed;
  executor.completions().watch(body.event, {body.word, body.sequence}, body.waits == 1);
  return {};
}

HandlerResult synchronize_context(Executor& executor, const Command& command,
                                  std::vector<std::byte>*) {
  BodyReader in(command.body);
  wire::SignalBody body;
  if (!in.read(&body) || !word_exists(body.word)) return kMalformed;
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

HandlerResult fault(Executor& executor, const Command& command, std::vector<std::byte>*) {
  BodyReader in(command.body);
  wire::FaultBody body;
  if (!in.read(&body)) return kMalformed;
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
