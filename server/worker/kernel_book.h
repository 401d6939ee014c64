// The kernel book: answers from module images what a driver before CUDA 12.4 does not tell of
// kernels: their names (12.3), their number, and the layout of their parameters (12.4).
//
// The functions that load, look up and unload code are wrapped, so the book knows the image of each
// module and library and the name of each function and kernel. The missing functions answer from
// the book. An image is read at once, because its memory is the caller's. A kernel whose image
// cannot be read is refused with CUDA_ERROR_NOT_SUPPORTED and a line that names it, because it
// cannot be launched without the layout of its parameters.
// Threads: keep_kernel_book() is called once per worker, before other threads. The functions that
// it puts into the table may be called on any threads at once. Nothing blocks.
#pragma once

#include "api/driver_table.h"

namespace rcuda::server {

// Leaves a table alone that has all of these functions.
void keep_kernel_book(api::DriverTable* table);

}  // namespace rcuda::server
