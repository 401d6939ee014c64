// Functions of NCCL that are not forwarded yet (docs/nccl.md).
#pragma once

namespace rcuda::client::nccl {

// Reports the function once. Returns ncclInvalidUsage. Any thread.
int not_forwarded(const char* name);

}  // namespace rcuda::client::nccl
