// Per-thread default streams: for CU_STREAM_PER_THREAD, each thread has an ordinary blocking stream
// of its own in every context it uses, created on first use and destroyed when the thread ends.
#pragma once

#include <cuda.h>

namespace rcuda::client {

struct Context;
struct Stream;

CUresult per_thread_stream(Context& context, Stream** stream);

}  // namespace rcuda::client
