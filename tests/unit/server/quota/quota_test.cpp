#include "server/quota/quota.h"

#include <atomic>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "server/quota/ledger.h"

namespace rcuda::server {
namespace {

UniqueFd copy_of(const Ledger& ledger) {
  return UniqueFd(::fcntl(ledger.descriptor(), F_DUPFD_CLOEXEC, 0));
}

// A session with these budgets. Each Allowance names the session's slot in its ledger.
Quota session(const std::vector<std::pair<Allowance, const Ledger*>>& accounts) {
  std::vector<Allowance> allowances;
  std::vector<UniqueFd> ledgers;
  for (const auto& [allowance, ledger] : accounts) {
    allowances.push_back(allowance);
    ledgers.push_back(copy_of(*ledger));
  }
  return std::move(Quota::make(std::move(allowances), std::move(ledgers))).value();
}

Allowance of_device_memory(uint64_t bytes, uint32_t slot) {
  return {.of = "user ada", .device_memory = bytes, .slot = slot};
}

Ledger ledger(uint32_t slots) {
  Ledger made = std::move(Ledger::make()).value();
  for (uint32_t slot = 0; slot < slots; ++slot) made.clear(slot);
  return made;
}

TEST(Ledger, CannotBeShrunkUnderTheDaemon) {
  const Ledger made = ledger(1);
  EXPECT_NE(::ftruncate(made.descriptor(), 0), 0);
}

TEST(Ledger, OtherMemoryIsRefused) {
  UniqueFd memory(::memfd_create("other", MFD_CLOEXEC));
  EXPECT_EQ(Ledger::open(std::move(memory), 0).status().code(), Code::kProtocol);
}

TEST(Ledger, AFalsifiedValueMakesNoRoom) {
  Ledger made = ledger(2);
  made.add(0, 0, 10);
  made.give(0, 1, 5);  // wraps
  EXPECT_FALSE(made.take(0, 0, 1, 100));
  made.clear(1);
  EXPECT_TRUE(made.take(0, 0, 1, 100));
}

TEST(Ledger, ManyThreadsNeverExceedTheLimit) {
  Ledger made = ledger(4);
  std::vector<std::thread> threads;
  for (uint32_t slot = 0; slot < 4; ++slot) {
    threads.emplace_back([&made, slot] {
      for (int i = 0; i < 20000; ++i) {
        if (made.take(3, slot, 7, 20)) {
          EXPECT_LE(made.of(3, slot), 20u);
          made.give(3, slot, 7);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made.sum(3), 0u);
}

// A program asks for more than there is, again and again, while another session allocates.
TEST(Ledger, ARefusedRequestChangesNothingForOtherSessions) {
  constexpr uint64_t kLimit = 100, kOwn = 60;
  Ledger made = ledger(2);
  ASSERT_TRUE(made.take(0, 0, kOwn, kLimit));
  for (const uint64_t bytes : {kLimit, UINT64_MAX - kOwn + 1}) {  // the second one wraps the slot
    std::atomic<bool> ends = false;
    std::thread asks([&] {
      while (!ends) EXPECT_FALSE(made.take(0, 0, bytes, kLimit));
    });
    size_t wrong = 0;
    for (int i = 0; i < 20000; ++i) {
      if (made.take(0, 1, kLimit - kOwn, kLimit)) {
        made.give(0, 1, kLimit - kOwn);
      } else {
        ++wrong;
      }
      if (made.take(0, 1, kLimit - kOwn + 1, kLimit)) ++wrong;
    }
    ends = true;
    asks.join();
    EXPECT_EQ(wrong, 0u) << bytes;
    EXPECT_EQ(made.sum(0), kOwn);
  }
}

TEST(Quota, NothingIsLimitedWithoutAllowances) {
  Quota quota;
  EXPECT_FALSE(quota.limits(&Allowance::device_memory));
  EXPECT_TRUE(quota.take(0, UINT64_MAX));
  EXPECT_FALSE(quota.room(0));
  quota.book_copy(UINT64_MAX, 1);
  EXPECT_EQ(quota.copies_held_until(1), 0u);
}

TEST(Quota, SessionsOfAUserShareTheirAllowance) {
  const Ledger ada = ledger(2);
  Quota one = session({{of_device_memory(100, 0), &ada}});
  Quota other = session({{of_device_memory(100, 1), &ada}});
  EXPECT_TRUE(one.take(0, 60));
  EXPECT_FALSE(other.take(0, 41));
  EXPECT_TRUE(other.take(0, 40));
  EXPECT_TRUE(other.take(1, 100));  // each device has its own limit
  one.give(0, 60);
  EXPECT_EQ(other.room(0)->free, 60u);
}

TEST(Quota, WhatAKilledSessionHadIsFreeAfterItsSlotIsCleared) {
  Ledger ada = ledger(2);
  {
    Quota killed = session({{of_device_memory(100, 0), &ada}});
    EXPECT_TRUE(killed.take(0, 100));
  }
  Quota next = session({{of_device_memory(100, 1), &ada}});
  EXPECT_FALSE(next.take(0, 1));
  ada.clear(0);
  EXPECT_TRUE(next.take(0, 100));
}

TEST(Quota, NothingIsBookedIfOneAllowanceIsExceeded) {
  const Ledger user = ledger(1), group = ledger(1);
  Quota quota = session({{of_device_memory(100, 0), &user}, {of_device_memory(50, 0), &group}});
  EXPECT_FALSE(quota.take(0, 60));
  EXPECT_EQ(user.sum(0), 0u);
  EXPECT_EQ(group.sum(0), 0u);
  EXPECT_TRUE(quota.take(0, 50));
  EXPECT_EQ(quota.room(0)->limit, 50u);
  EXPECT_EQ(quota.room(0)->free, 0u);
  quota.add(0, 30);  // counts as used, even above the limit
  EXPECT_EQ(group.sum(0), 80u);
  EXPECT_EQ(quota.room(0)->free, 0u);
}

TEST(Quota, ASlotThatNoLedgerHasIsRefused) {
  const Ledger ada = ledger(1);
  std::vector<UniqueFd> ledgers;
  ledgers.push_back(copy_of(ada));
  EXPECT_EQ(Quota::make({of_device_memory(1, Ledger::kSlots)}, std::move(ledgers)).status().code(),
            Code::kProtocol);
  EXPECT_EQ(Quota::make({of_device_memory(1, 0)}, {}).status().code(), Code::kProtocol);
}

TEST(Quota, SessionsOfAnAccountShareItsBandwidth) {
  const Ledger ada = ledger(2);
  const Allowance of = {.of = "user ada", .bandwidth = 1'000'000'000};
  Allowance other = of;
  other.slot = 1;
  Quota one = session({{of, &ada}}), two = session({{other, &ada}});
  constexpr uint64_t kNow = 5'000'000'000, kSecond = 1'000'000'000, kBurst = 50'000'000;
  one.book_copy(1000, kNow);
  EXPECT_EQ(one.copies_held_until(kNow), 0u);  // short of the burst
  one.book_copy(kSecond - 1000, kNow);
  EXPECT_EQ(one.copies_held_until(kNow), kNow + kSecond - kBurst);
  EXPECT_EQ(two.copies_held_until(kNow), 0u);
  two.book_copy(kSecond / 2, kNow);  // at half the rate, because the other session copies too
  EXPECT_EQ(two.copies_held_until(kNow), kNow + kSecond - kBurst);
  one.book_copy(kSecond / 2, kNow);
  EXPECT_EQ(one.copies_held_until(kNow), kNow + 2 * kSecond - kBurst);
  EXPECT_EQ(two.copies_held_until(kNow + 3 * kSecond), 0u);
  two.book_copy(1000, kNow + 3 * kSecond);  // a pause is not saved up
  EXPECT_EQ(two.copies_held_until(kNow + 3 * kSecond), 0u);
}

// An attacker that controls a worker can write any values into its page.
TEST(Quota, ASessionThatFalsifiesItsPageHoldsUpNoOther) {
  Ledger group = ledger(2);
  const Allowance of = {.of = "group games", .bandwidth = 1'000'000'000};
  Quota quota = session({{of, &group}});
  constexpr uint64_t kNow = 5'000'000'000, kSecond = 1'000'000'000, kBurst = 50'000'000;
  for (int i = 0; i < 3; ++i) (void)group.book_copy(1, UINT64_MAX, 1, kNow);
  EXPECT_EQ(quota.copies_held_until(kNow), 0u);
  quota.book_copy(kSecond, kNow);
  EXPECT_EQ(quota.copies_held_until(kNow), kNow + 2 * kSecond - kBurst);
}

// The mappings of ledgers in this process: "rw-s" or "r--s", and their addresses.
std::multimap<std::string, std::pair<uintptr_t, uintptr_t>> mappings() {
  std::ifstream maps("/proc/self/maps");
  std::multimap<std::string, std::pair<uintptr_t, uintptr_t>> found;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("rcuda-ledger") == std::string::npos) continue;
    uintptr_t from = 0, to = 0;
    char access[5] = {};
    EXPECT_EQ(std::sscanf(line.c_str(), "%lx-%lx %4s", &from, &to, access), 3) << line;
    found.insert({access, {from, to}});
  }
  return found;
}

TEST(Ledger, AWorkerCanWriteItsOwnPageOnly) {
  Ledger daemon = ledger(3);
  const auto before = mappings();
  const Ledger worker = std::move(Ledger::open(copy_of(daemon), 1)).value();
  EXPECT_EQ(worker.descriptor(), -1) << "the memory could be mapped again";
  size_t writable = 0;
  for (const auto& [access, range] : mappings()) {
    const size_t bytes = range.second - range.first;
    if (access == "rw-s") {
      writable += bytes;
    } else {
      EXPECT_NE(::mprotect(reinterpret_cast<void*>(range.first), bytes, PROT_READ | PROT_WRITE), 0);
    }
  }
  for (const auto& [access, range] : before) writable -= range.second - range.first;
  EXPECT_EQ(writable, 64u << 10);
  daemon.add(0, 2, 7);
  EXPECT_EQ(worker.sum(0), 7u);
}

TEST(Quota, ACopyOfAnyNumberOfBytesOverflowsNothing) {
  const Ledger ada = ledger(1);
  Quota quota = session({{{.of = "user ada", .bandwidth = 1}, &ada}});
  for (int i = 0; i < 3; ++i) quota.book_copy(UINT64_MAX, UINT64_MAX / 4);
  EXPECT_GT(quota.copies_held_until(1), 1ull << 60);
}

}  // namespace
}  // namespace rcuda::server
