// The kernel book: reads from module images the facts about kernels that a driver before CUDA 12.4
// does not report: their names (reported since 12.3), their number, and the layout of their
// parameters (since 12.4).
//
// The functions that load, look up and unload code are wrapped, so the book knows the image of each
// module and library and the name of each function and kernel. The missing functions answer from
// the book. An image is read when it is loaded, because its memory belongs to the caller. A kernel
// whose image cannot be read is refused with CUDA_ERROR_NOT_SUPPORTED and a line that names it,
// because it cannot be launched without the layout of its parameters.
// Threads: keep_kernel_book() is called once per worker, before other threads exist. The functions
// that it puts into the table may be called from several threads at once. No function blocks.
#pragma once

#include "api/driver_table.h"

namespace rcuda::server {

// Does nothing if the table already has all of these functions.
void keep_kernel_book(api::DriverTable* table);

}  // namespace rcuda::server
