// AddressWindows: the device addresses of one session.
//
// The worker names its windows in the Welcome, and this process reserves them without access before
// it uses the session. So a number is either a device address or a host address, never both. The
// worker is not trusted: owns() checks each address that the worker returns, and open() and close()
// refuse every page outside of the windows. Mappings of the program are never replaced.
//
// Threads: reserve() is called first; any thread may call the other functions. Nothing blocks. Of
// the other functions, only open() and close() make system calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/wire/address_window.h"

namespace rcuda::client {

class AddressWindows {
 public:
  AddressWindows() = default;
  // Owns these addresses without a reservation, for tests.
  explicit AddressWindows(const std::vector<wire::AddressWindow>& windows);
  AddressWindows(const AddressWindows&) = delete;
  AddressWindows& operator=(const AddressWindows&) = delete;
  ~AddressWindows();  // unmaps the reservations and the pages that open() has mapped

  // Reserves the windows of a Welcome. Returns kProtocol if there are no windows or too many, if a
  // window does not consist of whole pages inside the ranges for device memory (wire::kBases,
  // wire::kWindowRanges), or if it overlaps `taken`, which the worker had to avoid. Returns
  // kUnavailable if this process uses a part of a window. After an error nothing is reserved. If a
  // limit on addresses (ulimit -v) prevents a reservation, the window is still owned, and open()
  // maps only free pages.
  Status reserve(const std::vector<wire::AddressWindow>& windows,
                 const std::vector<wire::AddressWindow>& taken);

  // Returns false if a limit on addresses has prevented a reservation.
  bool are_reserved() const;

  // Whether the whole range lies in one window. A range of 0 bytes counts as one byte.
  bool owns(uint64_t address, uint64_t bytes) const;

  // Replaces whole pages with new pages of zeros that can be read and written. Returns false if the
  // range does not consist of whole owned pages, or if there is no memory. In a window without a
  // reservation, also returns false if the program has mapped something there.
  bool open(uint64_t address, size_t bytes);
  // Removes all access to pages that open() has mapped, and releases their memory. In a window
  // without a reservation, the range must be that of one open().
  void close(uint64_t address, size_t bytes);

 private:
  struct Window {
    uint64_t base = 0, bytes = 0;
    bool is_reserved = false;
  };

  const Window* find(uint64_t address, uint64_t bytes) const;
  bool open_unreserved(uint64_t address, size_t bytes);

  std::vector<Window> windows_;
  Mutex mutex_;
  // Pages opened without a reservation.
  std::map<uint64_t, size_t> opened_ RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::client
