// Quota: the allowances that apply to one session, in its worker. They are the session's own
// allowance, and those that it shares with other sessions of its user and of its groups. An amount
// is booked with all of them or with none.
//
// Devices are named by the server's numbers, which must be below Ledger::kDevices. Without
// allowances everything is allowed, and nothing is counted.
//
// Threads: any. Blocking: none. Errors: make() returns those of the Ledgers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "server/quota/ledger.h"
#include "server/quota/limits.h"

namespace rcuda::server {

class Quota {
 public:
  Quota() = default;
  // `ledgers`: the memory of each allowance's Ledger.
  static Result<Quota> make(std::vector<Allowance> allowances, std::vector<UniqueFd> ledgers);

  // Whether an allowance has this limit, such as &Allowance::device_memory.
  using Limit = uint64_t Allowance::*;
  bool limits(Limit limit) const;

  // Books bytes of a device, or of the host for the row Ledger::kHostMemory. False: an allowance
  // would be exceeded, and nothing is booked.
  bool take(uint32_t row, uint64_t bytes);
  void add(uint32_t row, uint64_t bytes);  // books bytes that are in use already
  void give(uint32_t row, uint64_t bytes);

  struct Room {
    uint64_t limit = 0;
    uint64_t free = 0;
    const Allowance* by = nullptr;
  };
  // Returns the allowance with the least free bytes, and these bytes; none if no allowance limits
  // the row. `limit` is the smallest of all limits.
  std::optional<Room> room(uint32_t row) const;

  // Books a copy. Times are monotonic nanoseconds.
  void book_copy(uint64_t bytes, uint64_t now);
  // The time until which no further copy may start, because of this session's booked copies; 0: a
  // copy may start now.
  uint64_t copies_held_until(uint64_t now) const;

 private:
  struct Budget {
    Allowance allowance;
    Ledger ledger;
  };
  static Limit limit_of(uint32_t row) {
    return row == Ledger::kHostMemory ? &Allowance::host_memory : &Allowance::device_memory;
  }

  std::vector<Budget> budgets_;
};

}  // namespace rcuda::server
