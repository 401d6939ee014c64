// WindowGuard: a decorator of the driver. All memory that it returns lies in the worker's own
// addresses; requests that cannot get such memory are refused.
//
// The fence leaves a driver no other free addresses (address_fence.h), with two exceptions:
// addresses below the fence, which are the driver's own, and holes that appear when a mapping from
// before the fence ends. Another server could use such an address too, so a client ends a session
// whose worker returns such an address. The guard checks each address that the driver returns to
// the program. If the address lies outside:
//
//   plain and managed memory       the guard keeps the piece allocated, closes holes, and calls the
//                                  driver again. It frees these held pieces when the program next
//                                  frees memory
//   memory of another process      is closed. If the guard then finds a hole and closes it, it
//                                  opens the memory of an IPC handle once more
//   a reservation                  is freed and made again at a free address inside
//   memory of pools and of graphs  is freed in stream order, or with its node
//   a variable of a module         stays allocated with its module
//
// Memory that stays outside is refused with CUDA_ERROR_OUT_OF_MEMORY.
// api/table/driver_overrides.toml lists the guarded functions under [guard]. Meters wraps the
// guard, so held pieces do not count as memory of the session.
//
// A process may have only one WindowGuard at a time (api/driver_decorator.h). A worker serves one
// session.
// Threads: any. Blocking: as the driver's own. Errors: the first refusal is logged.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "api/driver_decorator.h"
#include "api/driver_table.h"
#include "common/base/mutex.h"
#include "server/addresses/address_fence.h"

namespace rcuda::server {

class WindowGuard {
 public:
  // The arguments outlive this object.
  WindowGuard(const api::DriverTable& plain, const AddressFence& around);

  const api::DriverTable& table() const { return guarded_.table(); }

  // ---- for the overrides
  const api::DriverTable& driver;  // the driver without the guard
  const AddressFence& fence;

  // Whether memory that the driver has returned lies in the worker's own addresses. Also true if
  // the driver has returned no memory: `address` is null or *address is 0.
  bool contains(const CUdeviceptr* address, uint64_t bytes) const {
    return !address || *address == 0 || fence.contains(*address, bytes);
  }
  CUresult refuse(const char* what, uint64_t bytes);
  // Calls `allocate`, which sets *address, until the address is one of the worker's own. Gives up
  // when hold() returns false.
  template <typename Allocate>
  CUresult allocate_inside(const CUdeviceptr* address, uint64_t bytes, const Allocate& allocate) {
    for (;;) {
      const CUresult result = allocate();
      if (result != CUDA_SUCCESS || contains(address, bytes)) return result;
      const bool again = hold(*address, bytes);
      fence.close_holes();
      if (!again) return refuse("an allocation", bytes);
    }
  }
  void free_held();

 private:
  // Adds the piece to the held pieces, because freeing it now could wait for the device. Returns
  // false if the guard now holds too much to try again.
  bool hold(CUdeviceptr address, uint64_t bytes);

  DriverDecorator<WindowGuard> guarded_;
  std::atomic<bool> has_refused_{false};
  // The held pieces: memory outside of base and window that the driver has returned. They are freed
  // when the program next frees memory.
  Mutex mutex_;
  std::vector<CUdeviceptr> held_ RCUDA_GUARDED_BY(mutex_);
  uint64_t held_bytes_ RCUDA_GUARDED_BY(mutex_) = 0;
};

}  // namespace rcuda::server
