// AddressFence: makes a worker's driver allocate inside the worker's own addresses.
//
// The device pointers of a session's servers and the client's own host pointers share one number
// space (common/wire/address_ranges.h). A driver allocates at free addresses of its process: plain
// and pinned memory at addresses that the kernel chooses, from the top down; stream-ordered pools
// and reservations from the bottom up. So before the driver starts, raise() makes inaccessible
// mappings at all free addresses from kFenceBegin on, except in the worker's base. open() frees the
// addresses of the window when the session begins. Memory that fits into neither base nor window
// cannot be allocated.
//
// This works only if the kernel chooses addresses in the base and the window first, and the open
// addresses below kFenceBegin only when base and window are full. The usual layout of a process has
// this property. With the legacy layout the kernel never chooses addresses below its start point:
// raise() closes these addresses too, and no window lies there. With a stack limit of terabytes,
// recent kernels choose low addresses first. The daemon lowers such a limit before it starts
// workers (daemon/main.cpp).
//
// Rejected: raising the fence only when the session begins, around a window without a base. A
// driver that has started keeps free space in mappings outside of the window and would allocate
// there. It also unmaps some of these mappings later, which leaves holes in the fence.
//
// Threads: raise() before any other thread exists; open() before the session runs; the other
// functions on any thread.
// Blocking: close_holes() reads a file of /proc; the rest takes microseconds. No memory is
// committed. Errors: as the functions say.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/address_space.h"
#include "common/base/status.h"
#include "common/wire/address_window.h"

namespace rcuda::server {

class AddressFence {
 public:
  AddressFence() = default;  // closes nothing; contains() is true for every address
  // For tests: closes nothing; contains() is true only for these addresses.
  explicit AddressFence(std::vector<wire::AddressWindow> inside) : inside_(std::move(inside)) {}

  // Makes all free addresses outside of the base inaccessible, except for addresses below
  // kFenceBegin and the space into which the stack can grow. kUnavailable if an address of the base
  // is in use, kInvalidArgument if a limit on addresses (ulimit -v) is too low.
  static Result<AddressFence> raise(const wire::AddressWindow& base);
  // Makes the window's addresses free again. kInvalidArgument if some of them are not closed.
  Status open(const wire::AddressWindow& window);
  // Closes the addresses outside of inside() that were in use when the fence was raised, and are
  // free now. Returns the number of ranges that it has closed.
  size_t close_holes() const;

  // The worker's own addresses: its base, and its window once it is open.
  const std::vector<wire::AddressWindow>& inside() const { return inside_; }
  bool contains(uint64_t address, uint64_t bytes) const;
  // The closed addresses at which the kernel would place mappings, sorted.
  const std::vector<AddressRange>& closed() const { return closed_; }

 private:
  std::vector<wire::AddressWindow> inside_;
  std::vector<AddressRange> closed_;
};

}  // namespace rcuda::server
