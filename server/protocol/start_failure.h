// Classifies the failed start of a worker: whether the next worker will fail for the same reason.
//
// Clients wait while the reason may be temporary: memory or processes are short, another process
// uses the GPU exclusively, a service is starting. The daemon refuses clients immediately if an
// administrator must act first: the driver is missing or fails, a setting is wrong, the binary is
// missing.
// Pure; any thread.
#pragma once

#include "common/base/status.h"

namespace rcuda::server {

bool is_lasting(const Status& failure);

}  // namespace rcuda::server
