// The client's view of stream captures. It is needed for three things:
// - A process that captures nothing sends no capture queries to the worker.
// - Host functions and copies of pageable memory take another path in a capturing stream.
// - The client refuses calls that a capture forbids.
//
// A stream captures between cuStreamBeginCapture and cuStreamEndCapture, or after it has waited for
// an event of a capturing stream. The worker captures in relaxed mode, because its one executor
// thread executes the commands of all client threads. Capture modes depend on the calling thread,
// so the client enforces them. A refused call invalidates the captures that forbid it, as with a
// local driver. If the worker may refuse a command because of a capture, the client waits for the
// answer, so that the error comes from the call itself (capture_answers.h).
// Threads: any.
#pragma once

#include <cuda.h>

#include "client/session/capture_answers.h"

namespace rcuda::client {

struct Context;
struct Stream;

// `origin`: the stream on which the capture began.
void capture_begun(const Stream* origin, CUstreamCaptureMode mode);
// Ends the capture that began on the stream, if any.
void capture_ended(const Stream* origin);
// Removes the captures of a context that ends. Its streams end with it.
void captures_lost(const Context& context);
// Whether the calling thread may end the capture that began on the stream. Except in relaxed mode,
// only the thread that began a capture may end it. True if no capture began on the stream.
bool may_end_capture(const Stream* origin);

// Whether the stream captures now. Queries the worker only if any_capture().
bool may_capture(CUstream stream);

// cuThreadExchangeStreamCaptureMode: sets the calling thread's mode to *mode and returns the old
// mode in *mode.
CUresult exchange_capture_mode(CUstreamCaptureMode* mode);
// For calls that may synchronise, such as an allocation. Returns
// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if a capture of this thread or, in global mode, of any
// thread forbids the call. Invalidates those captures.
CUresult check_unsafe_call();
// For calls that use the current context's legacy stream. Returns
// CUDA_ERROR_STREAM_CAPTURE_IMPLICIT if a capturing stream synchronises with the legacy stream.
// Invalidates those captures.
CUresult check_legacy_stream();
// Returns CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if a capture began on a stream of the context,
// because a wait for the context would include that stream. Invalidates those captures.
CUresult check_context_wait(const Context& context);
// Invalidates the stream's capture, if any. Called when a call on the stream was refused.
void invalidate_capture(CUstream stream);

// While an instance exists, the thread's calls only query streams, so check_legacy_stream() does
// not refuse them.
class StreamQuestion {
 public:
  StreamQuestion();
  ~StreamQuestion();
  StreamQuestion(const StreamQuestion&) = delete;
  StreamQuestion& operator=(const StreamQuestion&) = delete;
};

}  // namespace rcuda::client
