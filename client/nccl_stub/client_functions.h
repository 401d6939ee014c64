// Finds the client library for libnccl.so.2.
#pragma once

#include "common/nccl/functions.h"

// The functions of librcuda.so, which the first call finds or loads. Null if it cannot be
// loaded, which is reported once. Threads: any. Blocking: the first call, while the loader reads
// the library.
const rcuda::nccl::Functions* client_functions();
