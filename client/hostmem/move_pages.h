// Replaces the pages of memory that is in use.
//
// Memory that an application registers is moved onto a memfd in place, so that workers can map it.
// Unregistering makes it private again. The first and last page of registered memory usually also
// hold other objects, and other threads may write to them during the move. These writes wait
// (userfaultfd) until the new pages are in place, so no write is lost. Where the kernel does not
// allow this (in some containers because of seccomp filters; in Linux before 5.14, and for pages of
// a memfd before 5.19), the memory and its neighbours must not be written to during the call.
// Without privileges (vm.unprivileged_userfaultfd), a system call that writes there during the move
// fails with EFAULT.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/mappings.h"

namespace rcuda::client {

// These functions replace whole pages by pages with the same contents and protection. move_onto()
// and move_off() move them in pieces of kMovedBytes. If the old pages are freed, this happens
// before the next piece moves, so at most one piece exists twice. Threads: any, for different
// pages. They block while they copy.
inline constexpr size_t kMovedBytes = 8u << 20;

// Moves the pages onto the memfd `backing`, from its beginning. The parts must follow each other
// without a gap and be readable. They must be private mappings, because shared memory would lose
// its connection to the other users. After a failure some pages are on the memfd, and the others
// are where they were.
bool move_onto(int backing, std::span<const MappedPart> parts);
// Replaces the pages by anonymous memory, because malloc() expects anonymous memory when it returns
// memory to the system. The old pages are part of one mapping of a memfd. `frees`: no other process
// uses them, so they are freed in the memfd. After a failure some pages are still on the memfd.
bool move_off(const MappedPart& part, bool frees);
// Like move_off(), for a child of fork(), which has one thread and whose parent still uses the old
// pages. Async-signal-safe.
bool copy_off(const MappedPart& part) noexcept;

}  // namespace rcuda::client
