// RCUDA_MANAGED: what the user asks for with managed memory. The one place that reads it.
//
// Threads: any. Nothing blocks. An error names the value and those that are possible; the process
// starts no session then (process.cpp), so elsewhere the mode is known to be one.
#pragma once

#include "common/base/status.h"

namespace rcuda::client {

enum class ManagedMode {
  kDefault,   // in the worker, over shared memory only where pages can be absent
  kInPlace,   // in the client where kernels reach its pages
  kTracked,   // fetched after each wait, not when it is accessed
  kCompared,  // and writes of the application are found by comparing
};

Result<ManagedMode> managed_mode();
bool is_managed_mode(ManagedMode mode);

}  // namespace rcuda::client
