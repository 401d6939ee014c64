// Host functions in a stream: the worker's stream waits while this process runs them.
#pragma once

#include <cuda.h>

#include <functional>

namespace rcuda::client {

// Appends `function` to the stream. While the stream captures, it becomes a node of the graph and
// runs with every launch of it. `stream_callback`: runs also after an error, and gets the status.
CUresult launch_host_function(CUstream stream, std::function<void(CUresult)> function,
                              bool stream_callback);

}  // namespace rcuda::client
