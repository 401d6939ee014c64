// Makes a table of an older driver as complete as the server needs it.
//
// Entries of the table that came after CUDA 12.0 are null if the driver lacks them. If an older
// function, or the images that modules are loaded from, can answer instead, complete() puts a
// function of ours there. So the executor need not know how old its driver is:
//   - graph edges and capture information (12.3): the versions without edge data;
//   - parameters and names of kernels, and which there are (12.3 and 12.4): kernel_book.h.
// Entries that stay null have no older equivalent. The client does not offer them either, because
// the handshake tells it the driver's version.
// Threads: called once per worker, before other threads, with a freshly loaded table, which is
// copied. The functions put into the table may be called on any thread. Nothing blocks.
#pragma once

#include "api/driver_table.h"

namespace rcuda::server {

void complete(api::DriverTable* table);

}  // namespace rcuda::server
