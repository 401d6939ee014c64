// Captures under way, as far as the client must know: queries of a process that captures nothing
// must not ask the worker, host functions and staging work differently in a captured stream, and
// calls that a capture forbids are refused here.
//
// A stream captures between cuStreamBeginCapture and cuStreamEndCapture, or because it waited for
// an event of a capturing stream. The worker is told to capture in relaxed mode, because its one
// executor thread carries out every client thread's commands: which thread may do what is decided
// here, where the threads are.
// Threads: any.
#pragma once

#include <cuda.h>

namespace rcuda::client {

void capture_begun(CUstreamCaptureMode mode);
void capture_ended();
bool any_capture();

// Whether the stream captures now. Asks the worker only while any_capture().
bool may_capture(CUstream stream);

// cuThreadExchangeStreamCaptureMode: the calling thread's mode becomes *mode, which gets the old
// one.
CUresult exchange_capture_mode(CUstreamCaptureMode* mode);
// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED when a call that may synchronise (an allocation, say) is
// forbidden to this thread by a capture of its own or, in global mode, of any thread.
CUresult check_unsafe_call();

}  // namespace rcuda::client
