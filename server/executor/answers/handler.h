// What handlers of commands return, and what they are given besides values.
#pragma once

#include <cuda.h>

namespace rcuda::server {

// Result of a handler: a CUresult for the reply (or, posted, for the error word). A body that
// cannot be decoded gives kMalformed, which ends the session.
struct HandlerResult {
  CUresult result = CUDA_SUCCESS;
  bool malformed = false;
  bool deferred = false;  // the reply comes later from a completion; nothing is sent now
};
inline constexpr HandlerResult kMalformed{CUDA_SUCCESS, true, false};
inline constexpr HandlerResult kDeferred{CUDA_SUCCESS, false, true};

// A callback of the client's as a function for the driver: it publishes a HostCallbackEvent and
// waits for the ack.
struct HostFunction {
  CUhostFn function = nullptr;
  void* argument = nullptr;
};

}  // namespace rcuda::server
