// Opens the standard descriptors, 0 to 2, if they are closed. A program may be started without them
// (cron, pdsh, `>&-`). The next files and sockets that it opens would then get these numbers, and
// would receive the program's messages and the output of kernels.
//
// Threads: call it at the start of main(), before anything opens a descriptor. Blocking: none.
// Errors: none; without /dev/null the descriptors stay closed.
#pragma once

namespace rcuda {

// Opens /dev/null for each closed descriptor of 0 to 2.
void open_standard_descriptors();

}  // namespace rcuda
