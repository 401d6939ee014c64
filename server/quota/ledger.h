// Ledger: the amounts that the sessions of one budget (a user, a group) use together, in memory
// that the daemon shares with the workers of these sessions.
//
// Each session has a slot, which is a page of memory. The session's worker writes this page and
// reads the pages of other sessions. The daemon clears the page when the worker has ended, so no
// memory stays booked for a worker that was killed. The time of the session's booked copies
// (book_copy()) is not cleared: they stay booked for 10 s at most.
//
// Before a worker reads anything from its client, it maps its own page for writing and the others
// for reading, and closes the descriptor of the memory. The system call filter prevents the worker
// from enlarging the mapping (call_filter.h). So a worker that has been taken over can claim as
// much as the budget's limit, but cannot change what other sessions have booked.
//
// Threads and processes: any; every value is an atomic. If two sessions request the last free bytes
// at the same time, the session with the lower slot gets them, provided that the other session
// withdraws soon. Blocking: none. Errors: make() and open() return the system's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/base/memory_file.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace rcuda::server {

class Ledger {
 public:
  static constexpr uint32_t kSlots = 1024;           // sessions of one budget at the same time
  static constexpr uint32_t kDevices = 64;           // by the server's numbers
  static constexpr uint32_t kHostMemory = kDevices;  // the row after those of the devices
  static constexpr uint32_t kRows = kDevices + 1;

  // The memory's size is sealed, so no process can truncate it.
  static Result<Ledger> make();
  // For a successor (successor.h): maps the memory of a Ledger that the earlier build of this
  // process has made.
  static Result<Ledger> restore(UniqueFd memory);
  // The layout of the memory, except for the numbers above. Change this text when the layout
  // changes.
  static constexpr const char* kLayout = "slots,pages(next_copy,used)";
  // Maps the memory of another process's Ledger, for the session with that slot. Returns kProtocol
  // if the memory is not a Ledger. descriptor() is -1.
  static Result<Ledger> open(UniqueFd memory, uint32_t own_slot);

  int descriptor() const { return memory_.get(); }

  // Books bytes if the row's sum stays within the limit. A request that does not fit books nothing.
  // If two concurrent requests do not fit together, the request with the higher slot is booked for
  // a moment and withdrawn.
  bool take(uint32_t row, uint32_t slot, uint64_t bytes, uint64_t limit);
  // Books bytes that are in use already.
  void add(uint32_t row, uint32_t slot, uint64_t bytes);
  void give(uint32_t row, uint32_t slot, uint64_t bytes);
  uint64_t sum(uint32_t row) const;
  // The bytes that one session has booked.
  uint64_t of(uint32_t row, uint32_t slot) const;
  // Makes a slot ready for a new session. Booked copies stay booked for up to 10 s.
  void clear(uint32_t slot);

  // Books a copy of `bytes` after the session's earlier copies. Returns the time at which the copy
  // would end. This time and `now` are in nanoseconds of the monotonic clock. (This is the virtual
  // scheduling form of the generic cell rate algorithm, ITU-T I.371.) Sessions whose copies have
  // not ended share `bytes_per_second` equally, so a falsified page slows others no more than one
  // session does.
  uint64_t book_copy(uint32_t slot, uint64_t bytes, uint64_t bytes_per_second, uint64_t now);
  // Returns the time at which the session's booked copies end.
  uint64_t copies_end(uint32_t slot) const;

 private:
  struct Page;
  struct Header;
  Ledger(UniqueFd memory, Mapped<std::byte> all, Mapped<Page> own)
      : memory_(std::move(memory)), all_(std::move(all)), own_(std::move(own)) {}
  const Header& header() const;
  const Page& page(uint32_t slot) const;
  Page& own(uint32_t slot);
  uint64_t sum(uint32_t row, uint32_t from, uint32_t to) const;

  UniqueFd memory_;
  Mapped<std::byte> all_;
  Mapped<Page> own_;  // null: all pages can be written
};

}  // namespace rcuda::server
