// Ledger: what the sessions of one account (a user, a group) use together, in memory that the
// daemon shares with the workers of these sessions.
//
// Each session has a slot. Its worker adds to its own slot and reads the sum of all; the daemon
// clears the slot when the worker has ended, however that was. So nothing stays booked for a worker
// that was killed. A worker that has been taken over can falsify the ledgers of its own user and
// groups, and no others: workers of other accounts do not have them.
//
// Threads and processes: any; every value is an atomic. Two sessions that ask for the last free
// bytes at once may both be refused. Blocking: none. Errors: make() and open() return the system's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace rcuda::server {

class Ledger {
 public:
  static constexpr uint32_t kSlots = 1024;    // sessions of one account at the same time
  static constexpr uint32_t kDevices = 64;    // by the server's numbers
  static constexpr uint32_t kHostMemory = kDevices;  // the row after those of the devices
  static constexpr uint32_t kRows = kDevices + 1;

  // The memory's size is sealed, so no process can take pages from another.
  static Result<Ledger> make();
  // Maps the memory of another process's Ledger. kProtocol if it is none.
  static Result<Ledger> open(UniqueFd memory);
  Ledger(Ledger&& other) noexcept;
  Ledger& operator=(Ledger&& other) noexcept;
  ~Ledger();

  int descriptor() const { return memory_.get(); }

  // Books bytes if the row's sum stays within the limit. A request that does not fit never changes
  // the sum, so concurrent requests do not see it.
  bool take(uint32_t row, uint32_t slot, uint64_t bytes, uint64_t limit);
  // Books bytes that are in use already.
  void add(uint32_t row, uint32_t slot, uint64_t bytes);
  void give(uint32_t row, uint32_t slot, uint64_t bytes);
  uint64_t sum(uint32_t row) const;
  // What one session has booked.
  uint64_t of(uint32_t row, uint32_t slot) const;
  // Makes a slot ready for a new session.
  void clear(uint32_t slot);

  // Books a copy of `bytes` behind the account's earlier ones, at `bytes_per_second`. Returns when
  // it would end, in nanoseconds of the monotonic clock, as `now` is. (This is the virtual
  // scheduling form of the generic cell rate algorithm, ITU-T I.371.)
  uint64_t book_copy(uint64_t bytes, uint64_t bytes_per_second, uint64_t now);
  // When the copies that are booked end. A falsified ledger may say anything.
  uint64_t copies_end() const;

 private:
  struct Page;
  Ledger(UniqueFd memory, Page* page);
  void unmap();

  UniqueFd memory_;
  Page* page_ = nullptr;
};

}  // namespace rcuda::server
