// Types that handlers of commands return and take.
#pragma once

#include <cuda.h>

namespace rcuda::server {

// Result of a handler: a CUresult for the reply or, if the command was posted, for the error word.
// A handler returns kMalformed if it cannot decode the body; this ends the session.
struct HandlerResult {
  CUresult result = CUDA_SUCCESS;
  bool malformed = false;
  bool deferred = false;  // a completion sends the reply later; nothing is sent now
};
inline constexpr HandlerResult kMalformed{CUDA_SUCCESS, true, false};
inline constexpr HandlerResult kDeferred{CUDA_SUCCESS, false, true};

// A callback of the client as a host function for the driver. The function publishes a
// HostCallbackEvent and waits for the ack.
struct HostFunction {
  CUhostFn function = nullptr;
  void* argument = nullptr;
};

}  // namespace rcuda::server
