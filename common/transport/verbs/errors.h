// Explains errors of rdma-core and of memory allocation to an administrator, in sentences that name
// the cause and the remedy. Any thread may call; a call blocks at most for one query of a port.
#pragma once

#include <string>

#include "common/base/status.h"
#include "common/transport/verbs/handles.h"

namespace rcuda::transport::verbs {

// Returns the error of a failed registration of memory. `error`: its errno.
Status registration_error(int error, size_t bytes);
// Returns the error of a failed call that locks or allocates memory in the kernel. `error`: its
// errno. `what` names the call: "ibv_create_cq", or "allocating a window of 8 MiB".
Status allocation_error(int error, const std::string& what);

// Says why a work request failed. `what` names the request.
std::string completion_problem(ibv_wc_status status, const std::string& what);
// Returns a sentence that says that the adapter has been removed.
std::string device_gone(ibv_context* context);
// "port 1 of mlx5_0 is down: ...", or empty if the port is active or cannot be queried.
std::string port_problem(ibv_context* context, uint8_t port);

}  // namespace rcuda::transport::verbs
