// Host functions in a stream: the worker's stream waits while this process runs them.
#pragma once

#include <functional>

#include <cuda.h>

#include "client/session/worker_events.h"

namespace rcuda::client {

// Appends a function to the stream. In a capturing stream it becomes a node of the graph and runs
// at every launch of the graph.
CUresult launch_host_function(CUstream stream, CUhostFn function, void* user_data);
// Appends a callback to the stream. Refused in a capturing stream. `callback` gets the status. It
// runs even after an error, including the loss of the session.
CUresult launch_stream_callback(CUstream stream, std::function<void(CUresult)> callback);
// For capturing streams: appends a node that runs the callback's function. A copy between servers
// becomes such a node.
CUresult launch_graph_function(CUstream stream, WorkerEvents::GraphCallback callback);

}  // namespace rcuda::client
