// Translation of handles of any kind, for the generated entry points.
#pragma once

#include <cuda.h>

#include "client/session/route.h"
#include "common/cuda/cuda_result.h"
#include "common/wire/protocol.h"

namespace rcuda::client {

// Returns the route to the worker that has the handle's object. Libraries and kernels belong to no
// context and session, so for them returns any_route().
CudaResult<Route> find_handle_route(const void* handle, wire::Kind kind);
// Translates a handle into its id for a command of this route. Null becomes id 0. Not for streams,
// which have find_stream_route(). A library has an id per session, a kernel an id per device. A
// kernel is accepted where a function is expected. May query the worker, which blocks for a round
// trip. Returns CUDA_ERROR_INVALID_HANDLE if the handle belongs to another session or is not a live
// object.
CUresult resolve_handle(const void* handle, wire::Kind kind, const Route& route,
                        wire::ObjectId* id);
// Whether the handle is a CUkernel, which the driver's calls accept in place of a CUfunction.
bool is_kernel(CUfunction handle);

}  // namespace rcuda::client
