// Completes the function table of an older driver, as far as the server needs it.
//
// Entries of the table that came after CUDA 12.0 are null if the driver lacks them. If an older
// function, or the images that modules are loaded from, can answer instead, complete() enters a
// function of rcuda there. So the executor need not know the driver's version:
//   - graph edges and capture information (12.3): the versions without edge data;
//   - names, parameters and lists of kernels (12.3 and 12.4): kernel_book.h.
// Entries that stay null have no older equivalent. The client does not offer them either, because
// the handshake tells it the driver's version.
// Threads: complete() is called once per worker, before other threads exist, with a freshly loaded
// table, which it copies. The functions that it puts into the table may be called from any thread.
// No function blocks.
#pragma once

#include "api/driver_table.h"

namespace rcuda::server {

void complete(api::DriverTable* table);

}  // namespace rcuda::server
