// The driver's environment variables that the client honours. Before Process::initialize(),
// driver_variables() returns their current values; afterwards, their values at that time.
//
// Threads: any. Blocking: none.
#pragma once

#include "common/cuda/driver_variables.h"

namespace rcuda::client {

cuda::DriverVariables driver_variables();
// Called once, by Process::initialize().
void keep_driver_variables();

}  // namespace rcuda::client
