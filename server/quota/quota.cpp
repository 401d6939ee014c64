#include "server/quota/quota.h"

#include <algorithm>
#include <utility>

namespace rcuda::server {
namespace {

// How far the booked copies of a budget may run ahead of its bandwidth. Small copies are therefore
// not delayed one by one.
constexpr uint64_t kBurstNs = 50'000'000;

}  // namespace

Result<Quota> Quota::make(std::vector<Allowance> allowances, std::vector<UniqueFd> ledgers) {
  if (allowances.size() != ledgers.size()) {
    return Status(Code::kProtocol, "the daemon passed " + std::to_string(ledgers.size()) +
                                       " ledgers for " + std::to_string(allowances.size()) +
                                       " allowances");
  }
  Quota quota;
  for (size_t i = 0; i < allowances.size(); ++i) {
    if (allowances[i].slot >= Ledger::kSlots) {
      return Status(Code::kProtocol, "the daemon named a ledger slot that does not exist");
    }
    RCUDA_ASSIGN_OR_RETURN(Ledger ledger, Ledger::open(std::move(ledgers[i]), allowances[i].slot));
    quota.budgets_.push_back({std::move(allowances[i]), std::move(ledger)});
  }
  return quota;
}

bool Quota::limits(Limit limit) const {
  return std::any_of(budgets_.begin(), budgets_.end(),
                     [&](const Budget& budget) { return budget.allowance.*limit != 0; });
}

bool Quota::take(uint32_t row, uint64_t bytes) {
  const Limit limit = limit_of(row);
  for (auto budget = budgets_.begin(); budget != budgets_.end(); ++budget) {
    const uint64_t most = budget->allowance.*limit;
    if (most == 0 || budget->ledger.take(row, budget->allowance.slot, bytes, most)) continue;
    while (budget != budgets_.begin()) {
      --budget;
      if (budget->allowance.*limit != 0) {
        budget->ledger.give(row, budget->allowance.slot, bytes);
      }
    }
    return false;
  }
  return true;
}

void Quota::add(uint32_t row, uint64_t bytes) {
  for (Budget& budget : budgets_) {
    if (budget.allowance.*limit_of(row) != 0) budget.ledger.add(row, budget.allowance.slot, bytes);
  }
}

void Quota::give(uint32_t row, uint64_t bytes) {
  for (Budget& budget : budgets_) {
    if (budget.allowance.*limit_of(row) != 0) budget.ledger.give(row, budget.allowance.slot, bytes);
  }
}

std::optional<Quota::Room> Quota::room(uint32_t row) const {
  std::optional<Room> room;
  for (const Budget& budget : budgets_) {
    const uint64_t most = budget.allowance.*limit_of(row);
    if (most == 0) continue;
    const uint64_t free = most - std::min(most, budget.ledger.sum(row));
    if (!room) room = Room{most, free, &budget.allowance};
    room->limit = std::min(room->limit, most);
    if (free < room->free) {
      room->free = free;
      room->by = &budget.allowance;
    }
  }
  return room;
}

void Quota::book_copy(uint64_t bytes, uint64_t now) {
  for (Budget& budget : budgets_) {
    if (budget.allowance.bandwidth == 0) continue;
    (void)budget.ledger.book_copy(budget.allowance.slot, bytes, budget.allowance.bandwidth, now);
  }
}

uint64_t Quota::copies_held_until(uint64_t now) const {
  uint64_t end = 0;
  for (const Budget& budget : budgets_) {
    if (budget.allowance.bandwidth == 0) continue;
    end = std::max(end, budget.ledger.copies_end(budget.allowance.slot));
  }
  return end > now + kBurstNs ? end - kBurstNs : 0;
}

}  // namespace rcuda::server
