// Captures under way, as far as the client must know: queries of a process that captures nothing
// must not ask the worker, host functions and staging work differently in a captured stream, and
// calls that a capture forbids are refused here.
//
// A stream captures between cuStreamBeginCapture and cuStreamEndCapture, or because it waited for
// an event of a capturing stream. The worker is told to capture in relaxed mode, because its one
// executor thread carries out every client thread's commands: which thread may do what is decided
// here, where the threads are. What is refused here spoils the captures that forbid it, as with a
// local driver. A command that the worker may refuse for a capture's sake is waited for, so that
// its error is its own.
// Threads: any.
#pragma once

#include <cuda.h>

#include "client/channel/capture_answers.h"

namespace rcuda::client {

struct Context;
struct Stream;

// `origin`: the stream that a capture began at.
void capture_begun(const Stream* origin, CUstreamCaptureMode mode);
// Nothing happens if none began there.
void capture_ended(const Stream* origin);
// The context is gone, with its streams.
void captures_lost(const Context& context);
// False: another thread began it, and only that one may end it. True if none began there.
bool may_end_capture(const Stream* origin);

// Whether the stream captures now. Asks the worker only while any_capture().
bool may_capture(CUstream stream);

// cuThreadExchangeStreamCaptureMode: the calling thread's mode becomes *mode, which gets the old
// one.
CUresult exchange_capture_mode(CUstreamCaptureMode* mode);
// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED when a call that may synchronise (an allocation, say) is
// forbidden to this thread by a capture of its own or, in global mode, of any thread. Those
// captures are invalid then.
CUresult check_unsafe_call();
// CUDA_ERROR_STREAM_CAPTURE_IMPLICIT when the current context's legacy stream is about to be used
// while a stream captures that waits for it. Those captures are invalid then.
CUresult check_legacy_stream();
// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED when a stream of the context captures: nobody can wait for
// all of them. The captures are invalid then.
CUresult check_context_wait(const Context& context);
// The stream's capture, if there is one, becomes invalid: a call to it was refused.
void invalidate_capture(CUstream stream);

// While it lives, the thread's calls only ask about streams: check_legacy_stream() lets them pass.
class StreamQuestion {
 public:
  StreamQuestion();
  ~StreamQuestion();
  StreamQuestion(const StreamQuestion&) = delete;
  StreamQuestion& operator=(const StreamQuestion&) = delete;
};

}  // namespace rcuda::client
