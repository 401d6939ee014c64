// Finds the client library for libnccl.so.2.
#pragma once

#include "common/nccl/functions.h"

// Returns the functions of librcuda.so, which the first call finds or loads. Returns null if the
// library cannot be loaded; the first call reports that. Threads: any. Blocking: the first call,
// while the loader reads the library.
const rcuda::nccl::Functions* client_functions();

namespace early {

// Passes the call to the client library before client_functions() is called, because the choice of
// the NCCL depends on it.
int ncclSetEncryption(const rcuda::nccl::EncryptionConfig* config);

}  // namespace early
