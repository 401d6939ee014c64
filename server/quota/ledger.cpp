#include "server/quota/ledger.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rcuda::server {

struct Ledger::Page {
  std::atomic<uint64_t> next_copy;
  // One more than the highest slot that was ever used. Sums read no further.
  std::atomic<uint32_t> slots;
  std::atomic<uint64_t> used[kRows][kSlots];
};

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace

Ledger::Ledger(UniqueFd memory, Page* page) : memory_(std::move(memory)), page_(page) {}

Ledger::Ledger(Ledger&& other) noexcept
    : memory_(std::move(other.memory_)), page_(std::exchange(other.page_, nullptr)) {}

Ledger& Ledger::operator=(Ledger&& other) noexcept {
  if (this == &other) return *this;
  unmap();
  memory_ = std::move(other.memory_);
  page_ = std::exchange(other.page_, nullptr);
  return *this;
}

Ledger::~Ledger() { unmap(); }

void Ledger::unmap() {
  if (page_) ::munmap(page_, sizeof(Page));
}

Result<Ledger> Ledger::make() {
  UniqueFd memory(::memfd_create("rcuda-ledger", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory || ::ftruncate(memory.get(), sizeof(Page)) != 0 ||
      ::fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0) {
    return Status::from_errno(errno, "making a ledger of what sessions use");
  }
  return open(std::move(memory));
}

Result<Ledger> Ledger::open(UniqueFd memory) {
  struct stat file{};
  if (::fstat(memory.get(), &file) != 0) return Status::from_errno(errno, "fstat of a ledger");
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  if (file.st_size != sizeof(Page) || seals < 0 || (seals & kSeals) != kSeals) {
    return Status(Code::kProtocol, "what the daemon passed is no ledger");
  }
  void* const page =
      ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (page == MAP_FAILED) return Status::from_errno(errno, "mapping a ledger");
  // New pages are zero, which is a valid Page.
  return Ledger(std::move(memory), static_cast<Page*>(page));
}

bool Ledger::take(uint32_t row, uint32_t slot, uint64_t bytes, uint64_t limit) {
  std::atomic<uint64_t>& own = page_->used[row][slot];
  uint64_t booked = own.load();
  do {
    const uint64_t total = sum(row);
    if (total > limit || bytes > limit - total) return false;
  } while (!own.compare_exchange_weak(booked, booked + bytes));
  // Another session may have booked since.
  if (sum(row) <= limit) return true;
  give(row, slot, bytes);
  return false;
}

void Ledger::add(uint32_t row, uint32_t slot, uint64_t bytes) {
  page_->used[row][slot].fetch_add(bytes);
}

void Ledger::give(uint32_t row, uint32_t slot, uint64_t bytes) {
  page_->used[row][slot].fetch_sub(bytes);
}

uint64_t Ledger::sum(uint32_t row) const {
  const uint32_t slots = std::min(page_->slots.load(), kSlots);
  uint64_t total = 0;
  for (uint32_t slot = 0; slot < slots; ++slot) {
    // A falsified value must not make the sum small.
    if (__builtin_add_overflow(total, page_->used[row][slot].load(), &total)) return UINT64_MAX;
  }
  return total;
}

uint64_t Ledger::of(uint32_t row, uint32_t slot) const { return page_->used[row][slot].load(); }

void Ledger::clear(uint32_t slot) {
  for (uint32_t row = 0; row < kRows; ++row) page_->used[row][slot].store(0);
  uint32_t slots = page_->slots.load();
  while (slots <= slot && !page_->slots.compare_exchange_weak(slots, slot + 1)) {
  }
}

uint64_t Ledger::book_copy(uint64_t bytes, uint64_t bytes_per_second, uint64_t now) {
  constexpr uint64_t kMost = 1ull << 61;  // 73 years, in nanoseconds: sums do not overflow
  const double exact = static_cast<double>(bytes) * 1e9 / static_cast<double>(bytes_per_second);
  const uint64_t takes = exact < static_cast<double>(kMost) ? static_cast<uint64_t>(exact) : kMost;
  uint64_t next = page_->next_copy.load();
  uint64_t end = 0;
  do {
    end = std::min(std::max(next, now), kMost) + takes;
  } while (!page_->next_copy.compare_exchange_weak(next, end));
  return end;
}

uint64_t Ledger::copies_end() const { return page_->next_copy.load(); }

}  // namespace rcuda::server
