// Per-thread default streams: for CU_STREAM_PER_THREAD, each thread has an ordinary blocking stream
// of its own in every context it uses, created on first use and destroyed when the thread ends.
#pragma once

#include <cuda.h>

#include "client/session/objects.h"

namespace rcuda::client {

CUresult per_thread_stream(Object* context, Object** stream);

}  // namespace rcuda::client
