// Finds the client library for libnccl.so.2.
#pragma once

#include "common/nccl/functions.h"

// Returns the functions of librcuda.so, which the first call finds or loads. Returns null if the
// library cannot be loaded; the first call reports that. Threads: any. Blocking: the first call,
// while the loader reads the library.
const rcuda::nccl::Functions* client_functions();
