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
#include <span>

#include "common/base/mappings.h"

namespace rcuda::client {

// Replace whole pages by pages with the same contents and protection. They move in pieces of
// kMovedBytes. The old pages of a piece are freed before the next piece moves, so no more than a
// piece exists twice. Threads: any, for different pages. They block while they copy.
inline constexpr size_t kMovedBytes = 8u << 20;

// By pages of the memfd `backing`, from its beginning. The parts follow each other without a gap,
// are readable, and are private mappings: shared memory would lose its connection to the other
// users. After a failure some pages are on the memfd, and the others are where they were.
bool move_onto(int backing, std::span<const MappedPart> parts);
// By anonymous memory, because malloc() expects that of all memory that it returns to the system.
// The old pages are a part of one mapping of a memfd. `frees`: no other process uses them, so they
// end. After a failure some pages are still on the memfd.
bool move_off(const MappedPart& part, bool frees);
// move_off() for a process with one thread, a child of fork(), whose parent still uses the old
// pages. Async-signal-safe.
bool copy_off(const MappedPart& part) noexcept;

}  // namespace rcuda::client
