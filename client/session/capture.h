// Which streams are capturing, as far as the client must know: staging and host functions work
// differently while they do, and capture queries of a process that captures nothing must not ask.
//
// A stream captures between cuStreamBeginCapture and cuStreamEndCapture, or because it waited for an
// event of a capturing stream. The client counts captures: while none is under way
// nothing captures; while one is, the worker is asked.
// Threads: any.
#pragma once

#include <cuda.h>

namespace rcuda::client {

// Captures under way in the process.
void capture_begun();
void capture_ended();
bool any_capture();

// Whether the stream captures now. Asks the worker only while any_capture().
bool may_capture(CUstream stream);

}  // namespace rcuda::client
