// Replaces the pages of memory that is in use.
//
// Memory that an application registers is moved onto a memfd in place, so that workers can map it.
// Unregistering makes it private again. Its first and last page usually also hold other objects, to
// which other threads may write during the move. These writes wait (userfaultfd) until the new
// pages are in place; none is lost. Where the kernel does not allow this (seccomp filters of some
// containers; before Linux 5.14, for pages of a memfd before 5.19), the memory and its neighbours
// must not be written to during the call. Without privileges (vm.unprivileged_userfaultfd), a
// system call that writes there during the move fails with EFAULT.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rcuda::client {

// Replace the whole pages [begin, begin + bytes) by pages with the same contents. False: not
// possible, and nothing has changed. Threads: any, for different pages. They block while they copy.

// By pages of the memfd `backing`, from its beginning. The memory must be a private mapping: shared
// memory would lose its connection to the other users.
bool move_onto(int backing, void* begin, size_t bytes);
// By anonymous memory. The old pages are one mapping of a memfd. malloc() expects all memory that
// it returns to the system to be anonymous.
bool move_off(void* begin, size_t bytes);
// move_off() for a process with one thread: a child of fork(). Async-signal-safe.
bool copy_off(void* begin, size_t bytes) noexcept;

}  // namespace rcuda::client
