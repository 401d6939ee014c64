// Makes a table of an older driver as complete as the server needs it.
//
// Entries of the table that came after CUDA 12.0 are null with a driver that lacks them. Where an
// older function, or the images that modules are loaded from, say the same, complete() puts a
// function of ours there, so that the executor need not know how old its driver is:
//   - graph edges and capture information (12.3): the versions without edge data;
//   - parameters and names of kernels, and which there are (12.3 and 12.4): kernel_book.h.
// What is left null has no older equivalent; the client does not offer it either, for the handshake
// told it the driver's version. Called once per worker, before threads, with a freshly loaded
// table, which is copied.
#pragma once

#include "api/driver_table.h"

namespace rcuda::server {

void complete(api::DriverTable* table);

}  // namespace rcuda::server
