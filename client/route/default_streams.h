// Per-thread default streams. For CU_STREAM_PER_THREAD, each thread has its own ordinary blocking
// stream in every context that it uses. The stream is created on first use and destroyed when the
// thread ends.
#pragma once

#include <cuda.h>

namespace rcuda::client {

struct Context;
struct Stream;

// Gets the calling thread's stream in `context`, which must be the current context. Posts a command
// if the stream does not exist yet. Any thread.
CUresult per_thread_stream(Context& context, Stream** stream);

}  // namespace rcuda::client
