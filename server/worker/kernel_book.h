// What a driver before CUDA 12.4 does not tell of kernels, from the images that they come from:
// names (12.3), how many there are, and how parameters lie in memory (12.4).
//
// Functions that load, look up and unload are wrapped, so that the book knows the image of each
// module and library and the name of each function and kernel; the missing functions then answer
// from it. An image is read at once, because its memory is the caller's. A kernel whose image
// cannot be read is not handed out, for without its parameters' layout it cannot be launched:
// CUDA_ERROR_NOT_SUPPORTED and a line that names it. Called once per worker, before threads; the
// functions that it puts into the table may be called on any thread, several at once.
#pragma once

#include "api/driver_table.h"

namespace rcuda::server {

// Does nothing to a table that lacks nothing of this.
void keep_kernel_book(api::DriverTable* table);

}  // namespace rcuda::server
