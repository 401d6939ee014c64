// WindowGuard: a driver whose memory lies in the worker's own addresses, or is refused.
//
// The fence leaves a driver no other free addresses (address_fence.h), but two things can undo
// that: addresses below the fence, which are the driver's own, and holes that come up when
// something that was mapped before the fence is given back. An address there could be another
// server's too, and a client ends a session that returns one. So the guard looks at each address
// that the driver returns to the program:
//
//   plain and managed memory, memory of         the piece is kept, holes are closed, and the driver
//   another process                             is asked again. Kept pieces are freed when the
//                                               program next frees memory, because that may wait
//   a reservation                               is given back and made again at a free place inside
//   memory of pools and of graphs               is given back in stream order, or with its node
//
// What stays outside is refused with CUDA_ERROR_OUT_OF_MEMORY. Quotas book what comes out of the
// guard (MeteredDriver is above it), so kept pieces do not count.
//
// The entries of a table are plain functions, so the guard is known to the process: only one may
// exist at a time. A worker serves one session at a time.
// Threads: any. Blocking: as the driver's own. Errors: the first refusal is logged.
#pragma once

#include "api/driver_table.h"
#include "server/addresses/address_fence.h"

namespace rcuda::server {

class WindowGuard {
 public:
  // Both outlive this object.
  WindowGuard(const api::DriverTable& driver, const AddressFence& fence);
  ~WindowGuard();
  WindowGuard(const WindowGuard&) = delete;
  WindowGuard& operator=(const WindowGuard&) = delete;

  const api::DriverTable& table() const { return guarded_; }

 private:
  api::DriverTable guarded_;
};

}  // namespace rcuda::server
