// Page-locked client memory that the GPUs of every session can use at the address the application has.
//
// allocate() maps a memfd in a range that all workers keep free (host_range.h); on shared memory the
// workers map the same pages, elsewhere they make page-locked memory of their own at that address
// and move the bytes when a copy needs them. Memory that the application already has and registers
// (cuMemHostRegister) is moved onto a memfd in place, at its address, so that it becomes the same
// thing; where a worker cannot have that address, it stays pageable: copies work, kernels cannot
// reach it, and the device pointer query says so.
// Threads: any. Blocking: a round trip per session.
#pragma once

#include <cuda.h>

#include <cstddef>

namespace rcuda::client {

CUresult allocate_host(void** address, size_t bytes, unsigned flags, bool managed);
CUresult free_host(void* address);
CUresult register_host(void* address, size_t bytes, unsigned flags);
CUresult unregister_host(void* address);

}  // namespace rcuda::client
