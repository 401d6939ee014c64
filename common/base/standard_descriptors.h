// Standard descriptors: 0 to 2 of a program that may have been started without them (cron, pdsh,
// `>&-`). Otherwise the next files and sockets would get these numbers, and messages and the output
// of kernels would go into them.
//
// Threads: call it at the start of main(), before anything opens a descriptor. Blocking: none.
// Errors: none; without /dev/null they stay closed.
#pragma once

namespace rcuda {

// Opens /dev/null for those of descriptors 0 to 2 that are closed.
void open_standard_descriptors();

}  // namespace rcuda
