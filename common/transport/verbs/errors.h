// What the errors of rdma-core and of the host's memory mean to an administrator: sentences that
// name the culprit and the mend. Any thread may call; nothing blocks for long (a port is queried).
#pragma once

#include <string>

#include "common/base/status.h"
#include "common/transport/verbs/handles.h"

namespace rcuda::transport::verbs {

// Registration of memory failed with errno `error`.
Status registration_error(int error, size_t bytes);
// Making something else failed, for which the kernel locks or allocates memory: `what` is
// "ibv_create_cq", or "allocating a window of 8388608 bytes".
Status allocation_error(int error, const std::string& what);

// Why a work request failed; `what` was asked for.
std::string completion_problem(ibv_wc_status status, const std::string& what);
// The adapter itself was taken away.
std::string device_gone(ibv_context* context);
// "port 1 of mlx5_0 is down: ...", or empty where the port is active or cannot be asked.
std::string port_problem(ibv_context* context, uint8_t port);

}  // namespace rcuda::transport::verbs
