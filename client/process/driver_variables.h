// The driver's environment variables that the client answers itself, as they were at cuInit; before
// that, as they are.
//
// Threads: any. Blocking: none.
#pragma once

#include "common/cuda/driver_variables.h"

namespace rcuda::client {

cuda::DriverVariables driver_variables();
// Called once, by Process::initialize().
void keep_driver_variables();

}  // namespace rcuda::client
