// Standard descriptors, 0 to 2. A program may be started without them (cron, pdsh, `>&-`). The next
// files and sockets would then get these numbers, and messages and kernel output would go into
// them.
//
// Threads: call it at the start of main(), before anything opens a descriptor. Blocking: none.
// Errors: none; without /dev/null the descriptors stay closed.
#pragma once

namespace rcuda {

// Opens /dev/null for each closed descriptor of 0 to 2.
void open_standard_descriptors();

}  // namespace rcuda
