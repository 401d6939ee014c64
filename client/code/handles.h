// Translation of handles of any kind, for the generated entry points.
#pragma once

#include <cuda.h>

#include "client/session/route.h"
#include "common/wire/protocol.h"

namespace rcuda::client {

// As resolve() (route.h), also for libraries and kernels, which have an id per session. A kernel is
// accepted where a function is expected. May query the worker, which blocks for a round trip.
CUresult resolve_handle(const void* handle, wire::Kind kind, Route* route, wire::ObjectId* id);

}  // namespace rcuda::client
