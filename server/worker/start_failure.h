// Why a worker does not start: whether the next one will fail as well.
//
// Clients wait while the reason may pass by itself: memory or processes are short, another process
// has the GPU, a service starts. They are refused at once if somebody must mend it first: there is
// no driver, the driver refuses, a setting is wrong, the binary is missing.
// Pure; any thread.
#pragma once

#include "common/base/status.h"

namespace rcuda::server {

bool is_lasting(const Status& failure);

}  // namespace rcuda::server
