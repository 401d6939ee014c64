// Host functions in a stream: the worker's stream waits while this process runs them.
#pragma once

#include <functional>

#include <cuda.h>

#include "client/channel/event_thread.h"

namespace rcuda::client {

// Appends a function to the stream. In a stream that captures it becomes a node of the graph and
// runs with every launch of it.
CUresult launch_host_function(CUstream stream, CUhostFn function, void* user_data);
// Not in a stream that captures. `callback` runs also after an error, even if that is the loss of
// the session, and gets the status.
CUresult launch_stream_callback(CUstream stream, std::function<void(CUresult)> callback);
// In a stream that captures, with the function and what else a node of it needs: for copies between
// servers, which become such nodes.
CUresult launch_graph_function(CUstream stream, EventThread::GraphCallback callback);

}  // namespace rcuda::client
