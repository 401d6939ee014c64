// AddressWindows: the device addresses of one session.
//
// The worker names its windows in the Welcome, and this process reserves them without access before
// it uses the session. So a number is either a device address or a host address, never both. The
// worker is not trusted: each address that it returns is checked with owns(), and pages change
// their access only through open() and close(), which refuse every page outside of the windows.
// Nothing that the program has mapped is ever replaced.
//
// Threads: reserve() before all others, which any thread may call. Nothing blocks. Only open() and
// close() make system calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "common/base/status.h"
#include "common/wire/handshake.h"

namespace rcuda::client {

class AddressWindows {
 public:
  AddressWindows() = default;
  // Owns these addresses without a reservation, for tests.
  explicit AddressWindows(const std::vector<wire::AddressWindow>& windows);
  AddressWindows(const AddressWindows&) = delete;
  AddressWindows& operator=(const AddressWindows&) = delete;
  ~AddressWindows();  // ends the reservations, and what open() has mapped there

  // Reserves the windows of a Welcome. kProtocol if there are none or too many, if one is not whole
  // pages inside of the ranges for device memory (wire::kBases, wire::kWindowRanges), or overlaps
  // `taken`, which the worker was asked not to use; kUnavailable if this process uses a part of it.
  // After an error nothing is reserved. A limit on addresses (ulimit -v) forbids any reservation.
  // Then the windows are owned all the same, and open() maps only pages that are free.
  Status reserve(const std::vector<wire::AddressWindow>& windows,
                 const std::vector<wire::AddressWindow>& taken);

  // False if a limit on addresses has forbidden a reservation.
  bool are_reserved() const;

  // Whether the whole range lies in one window. 0 bytes count as one.
  bool owns(uint64_t address, uint64_t bytes) const;

  // Replaces whole pages by new ones with zeros, which may be read and written. False, with nothing
  // changed, if the pages are not owned or there is no memory.
  bool open(uint64_t address, size_t bytes);
  // Takes away all access to pages that open() has made, and their memory.
  void close(uint64_t address, size_t bytes);

 private:
  struct Window {
    uint64_t base = 0, bytes = 0;
    bool is_reserved = false;
  };

  const Window* find(uint64_t address, uint64_t bytes) const;
  bool open_unreserved(uint64_t address, size_t bytes);

  std::vector<Window> windows_;
  std::mutex mutex_;
  std::map<uint64_t, size_t> opened_;  // where nothing is reserved; guarded by mutex_
};

}  // namespace rcuda::client
