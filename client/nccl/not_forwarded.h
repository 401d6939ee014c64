// What rcuda does not support of NCCL: some functions, and members of structs (docs/nccl.md).
#pragma once

namespace rcuda::client::nccl {

// Logs the function or member once. Returns ncclInvalidUsage. Any thread.
int not_forwarded(const char* name);

}  // namespace rcuda::client::nccl
