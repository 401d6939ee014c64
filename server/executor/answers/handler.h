// Types that handlers of commands return and take.
#pragma once

#include <cuda.h>

namespace rcuda::server {

// Result of a handler: a CUresult for the reply or, if the command was posted, for the error word.
// A handler returns kMalformed if it cannot decode the body; this ends the session.
struct HandlerResult {
  constexpr HandlerResult(CUresult answer = CUDA_SUCCESS, bool is_malformed = false,
                          bool is_deferred = false)
      : result(answer), malformed(is_malformed), deferred(is_deferred) {}

  CUresult result;
  bool malformed;
  bool deferred;  // a completion sends the reply later; nothing is sent now
};
inline constexpr HandlerResult kMalformed{CUDA_SUCCESS, true, false};
inline constexpr HandlerResult kDeferred{CUDA_SUCCESS, false, true};

// A callback of the client as a host function for the driver. The function publishes a
// HostCallbackEvent and waits for the client's ack.
struct HostFunction {
  CUhostFn function = nullptr;
  void* argument = nullptr;
};

}  // namespace rcuda::server
