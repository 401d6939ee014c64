// WindowGuard: a driver whose memory lies in the worker's window, or is refused.
//
// The fence leaves a driver no other free addresses (address_fence.h). But a driver may still have
// room in memory that it mapped before the fence was raised, and it may use low addresses that are
// its own. An address there could be another server's too. So the guard looks at each address that
// the driver returns to the program. It keeps a small piece outside, so that nobody gets it, and
// asks again; it moves a reservation into the window by a hint; it gives back everything else and
// returns CUDA_ERROR_OUT_OF_MEMORY.
//
// The entries of a table are plain functions, so the window is known to the process: only one guard
// may exist at a time. A worker serves one session.
// Threads: any. Blocking: as the driver's own. Errors: the first refusal is logged.
#pragma once

#include "api/driver_table.h"
#include "common/wire/handshake.h"

namespace rcuda::server {

class WindowGuard {
 public:
  // `driver` outlives this object.
  WindowGuard(const api::DriverTable& driver, const wire::AddressWindow& window);
  ~WindowGuard();
  WindowGuard(const WindowGuard&) = delete;
  WindowGuard& operator=(const WindowGuard&) = delete;

  const api::DriverTable& table() const { return guarded_; }

 private:
  api::DriverTable guarded_;
};

}  // namespace rcuda::server
