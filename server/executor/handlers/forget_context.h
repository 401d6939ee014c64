// The first step of every command that ends a context: cuCtxDestroy, cuDevicePrimaryCtxReset and
// cuGreenCtxDestroy. Executor thread only. Blocking: as CudaDeviceOps::forget_context().
#pragma once

#include "server/executor/core/services.h"
#include "server/executor/objects/objects.h"

namespace rcuda::server {

// Ends the pending completions of the context with an error, and forgets what this worker keeps of
// the context and of its objects, whose ids are unbound. Call it before the driver ends the
// context: afterwards its events must not be queried, nor its streams.
void forget_context(ContextServices& services, ContextState& context);

}  // namespace rcuda::server
