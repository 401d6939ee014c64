// The error for functions of NCCL and members of its structs that rcuda does not support
// (docs/nccl.md).
#pragma once

namespace rcuda::client::nccl {

// Logs the function or member once. Returns ncclInvalidUsage. Any thread.
int not_forwarded(const char* name);

}  // namespace rcuda::client::nccl
