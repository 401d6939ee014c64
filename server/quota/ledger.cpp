#include "server/quota/ledger.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>

#include "common/base/monotonic.h"

namespace rcuda::server {
namespace {

// A multiple of every page size of x86-64 and AArch64. Only pages that are used take memory.
constexpr size_t kPageBytes = 64u << 10;
constexpr size_t kAllBytes = (1 + size_t{Ledger::kSlots}) * kPageBytes;
// A session that gets the page of an ended session inherits the copies that book_copy() has booked
// there, but for at most this time, in nanoseconds.
constexpr uint64_t kKeptCopies = 10'000'000'000;
// A session whose booking does not fit checks at most this many times whether another session
// withdraws its booking.
constexpr int kLooks = 1000;

static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace

// The beginning of the memory. The slots' pages follow. Only the daemon writes the header.
struct Ledger::Header {
  // One more than the highest slot that was ever used. Sums read no further.
  std::atomic<uint32_t> slots;
};

struct Ledger::Page {
  std::atomic<uint64_t> next_copy;
  std::atomic<uint64_t> used[kRows];
};

const Ledger::Header& Ledger::header() const {
  return *reinterpret_cast<const Header*>(all_.get());
}

const Ledger::Page& Ledger::page(uint32_t slot) const {
  return *reinterpret_cast<const Page*>(all_.get() + (1 + size_t{slot}) * kPageBytes);
}

// In a worker, returns the only page that the worker can write: its own.
Ledger::Page& Ledger::own(uint32_t slot) { return own_ ? *own_ : const_cast<Page&>(page(slot)); }

Result<Ledger> Ledger::make() {
  static_assert(sizeof(Page) <= kPageBytes);
  UniqueFd memory = make_sealed_memory("rcuda-ledger", kAllBytes);
  if (!memory) return Status::from_errno(errno, "making a ledger of memory use");
  return restore(std::move(memory));  // new pages are zero, which is valid
}

Result<Ledger> Ledger::restore(UniqueFd memory) {
  auto all = map_file_as<std::byte>(memory.get(), 0, kAllBytes, PROT_READ | PROT_WRITE);
  if (!all) return Status::from_errno(errno, "mapping a ledger of memory use");
  return Ledger(std::move(memory), std::move(all), nullptr);
}

Result<Ledger> Ledger::open(UniqueFd memory, uint32_t own_slot) {
  if (!is_sealed_memory(memory.get(), kAllBytes) || own_slot >= kSlots) {
    return Status(Code::kProtocol,
                  "the daemon passed memory that is not a ledger, or an invalid slot");
  }
  // A mapping through a descriptor that is open for writing could be made writable later.
  const std::string path = "/proc/self/fd/" + std::to_string(memory.get());
  const UniqueFd reader(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!reader) return Status::from_errno(errno, "opening a ledger of memory use");
  auto all = map_file_as<std::byte>(reader.get(), 0, kAllBytes, PROT_READ);
  if (!all) return Status::from_errno(errno, "mapping a ledger of memory use");
  auto own = map_file_as<Page>(memory.get(), (1 + uint64_t{own_slot}) * kPageBytes, kPageBytes,
                               PROT_READ | PROT_WRITE);
  if (!own) return Status::from_errno(errno, "mapping a ledger of memory use");
  return Ledger({}, std::move(all), std::move(own));
}

bool Ledger::take(uint32_t row, uint32_t slot, uint64_t bytes, uint64_t limit) {
  std::atomic<uint64_t>& own_bytes = own(slot).used[row];
  uint64_t booked = own_bytes.load();
  uint64_t higher = 0;
  do {
    const uint64_t total = sum(row);
    if (total > limit || bytes > limit - total) return false;
    higher = sum(row, slot + 1, kSlots);
  } while (!own_bytes.compare_exchange_weak(booked, booked + bytes));
  // Another session may have booked meanwhile. If both bookings do not fit together, the session
  // with the higher slot withdraws.
  for (int look = 0; look < kLooks; ++look) {
    if (sum(row) <= limit) return true;
    uint64_t least = 0;
    if (__builtin_add_overflow(sum(row, 0, slot + 1), higher, &least) || least > limit) break;
  }
  give(row, slot, bytes);
  return false;
}

void Ledger::add(uint32_t row, uint32_t slot, uint64_t bytes) {
  own(slot).used[row].fetch_add(bytes);
}

void Ledger::give(uint32_t row, uint32_t slot, uint64_t bytes) {
  own(slot).used[row].fetch_sub(bytes);
}

uint64_t Ledger::sum(uint32_t row) const { return sum(row, 0, kSlots); }

uint64_t Ledger::sum(uint32_t row, uint32_t from, uint32_t to) const {
  const uint32_t slots = std::min(header().slots.load(), to);
  uint64_t total = 0;
  for (uint32_t slot = from; slot < slots; ++slot) {
    // A falsified value must not make the sum small.
    if (__builtin_add_overflow(total, page(slot).used[row].load(), &total)) return UINT64_MAX;
  }
  return total;
}

uint64_t Ledger::of(uint32_t row, uint32_t slot) const { return page(slot).used[row].load(); }

void Ledger::clear(uint32_t slot) {
  Page& cleared = own(slot);
  for (std::atomic<uint64_t>& row : cleared.used) row.store(0);
  cleared.next_copy.store(std::min(cleared.next_copy.load(), monotonic_ns() + kKeptCopies));
  std::atomic<uint32_t>& used = const_cast<Header&>(header()).slots;
  uint32_t slots = used.load();
  while (slots <= slot && !used.compare_exchange_weak(slots, slot + 1)) {
  }
}

uint64_t Ledger::book_copy(uint32_t slot, uint64_t bytes, uint64_t bytes_per_second, uint64_t now) {
  constexpr uint64_t kMost = 1ull << 61;  // 73 years, in nanoseconds: sums do not overflow
  const uint32_t slots = std::min(header().slots.load(), kSlots);
  uint64_t sharers = 1;
  for (uint32_t other = 0; other < slots; ++other) {
    if (other != slot && page(other).next_copy.load() > now) ++sharers;
  }
  const double exact = static_cast<double>(bytes) * 1e9 * static_cast<double>(sharers) /
                       static_cast<double>(bytes_per_second);
  const uint64_t takes = exact < static_cast<double>(kMost) ? static_cast<uint64_t>(exact) : kMost;
  std::atomic<uint64_t>& next_copy = own(slot).next_copy;
  uint64_t next = next_copy.load();
  uint64_t end = 0;
  do {
    end = std::min(std::max(next, now), kMost) + takes;
  } while (!next_copy.compare_exchange_weak(next, end));
  return end;
}

uint64_t Ledger::copies_end(uint32_t slot) const { return page(slot).next_copy.load(); }

}  // namespace rcuda::server
