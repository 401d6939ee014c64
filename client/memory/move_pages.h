// Replacing the pages of memory that is in use.
//
// Memory that an application registers becomes a memfd's in place, so that workers can map it, and
// the application's alone again afterwards. Its first and last page usually hold other objects as
// well, which other threads write to meanwhile: their writes wait (userfaultfd) until the new pages
// are there, and none is lost. Where the kernel does not let a process have that (seccomp filters
// of some containers; before Linux 5.14, and 5.19 for pages of a memfd), memory and its neighbours
// must not be written to during the call. Without privileges (vm.unprivileged_userfaultfd) system
// calls that write there meanwhile fail with EFAULT.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rcuda::client {

// These replace the whole pages [begin, begin + bytes) by others with the same contents. False: it
// cannot be done, and all is as it was. Threads: any, for different pages. They block for copying.

// By those of the memfd `backing`, from its beginning. Memory that is not plain private or
// anonymous cannot be replaced.
bool move_onto(int backing, void* begin, size_t bytes);
// Of one mapping of a memfd, by anonymous memory, as malloc() takes all to be that it gives back.
bool move_off(void* begin, size_t bytes);
// The same where no other thread runs: in a child of fork(). Async-signal-safe.
bool copy_off(void* begin, size_t bytes) noexcept;

}  // namespace rcuda::client
