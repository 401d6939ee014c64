// The choice of windows, the fence around one, and the driver that is kept inside.
#include "server/worker/address_window.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/wire/address_ranges.h"
#include "server/worker/address_fence.h"
#include "server/worker/window_guard.h"

namespace rcuda::server {
namespace {

constexpr uint64_t kGiB = 1ull << 30;

TEST(AddressSpaceTest, GapsLieBetweenMappings) {
  const std::vector<AddressRange> mappings = {{10, 20}, {20, 30}, {50, 60}, {90, 100}};
  const auto free = gaps(mappings, 15, 95);
  ASSERT_EQ(free.size(), 2u);
  EXPECT_EQ(free[0].begin, 30u);
  EXPECT_EQ(free[0].end, 50u);
  EXPECT_EQ(free[1].begin, 60u);
  EXPECT_EQ(free[1].end, 90u);
  EXPECT_EQ(gaps({}, 5, 9).size(), 1u);
  EXPECT_TRUE(gaps({{0, 100}}, 5, 9).empty());
  EXPECT_TRUE(gaps({{0, 100}, {3, 7}}, 5, 50).empty()) << "ranges may overlap";
}

// ---- windows -----------------------------------------------------------------------------------

// The windows of a session, chosen one after the other as its workers do. Ends at the first
// refusal.
std::vector<wire::AddressWindow> windows_of(uint32_t servers, uint64_t memory_bytes,
                                            std::vector<wire::AddressWindow> taken = {}) {
  std::vector<wire::AddressWindow> windows;
  wire::Hello hello;
  hello.servers = servers;
  hello.taken = std::move(taken);
  for (; hello.worker < servers; ++hello.worker) {
    const auto window = choose_window(window_request(hello, memory_bytes, {{0, 1u << 20}}));
    if (!window.ok()) break;
    windows.push_back(*window);
    hello.taken.push_back(*window);
  }
  return windows;
}

bool lies_in_a_device_range(const wire::AddressWindow& window) {
  return std::any_of(std::begin(wire::kDeviceRanges), std::end(wire::kDeviceRanges),
                     [&](const wire::AddressSpan& span) {
                       return window.base >= span.begin && window.base + window.bytes <= span.end;
                     });
}

void expect_disjoint(std::vector<wire::AddressWindow> windows) {
  std::sort(windows.begin(), windows.end(),
            [](const auto& a, const auto& b) { return a.base < b.base; });
  for (size_t i = 0; i < windows.size(); ++i) {
    EXPECT_TRUE(lies_in_a_device_range(windows[i])) << std::hex << windows[i].base;
    if (i == 0) continue;
    EXPECT_LE(windows[i - 1].base + windows[i - 1].bytes, windows[i].base);
  }
}

TEST(AddressWindowTest, OneServerHasMoreThanItsDevicesNeed) {
  const auto windows = windows_of(1, 80 * kGiB);
  ASSERT_EQ(windows.size(), 1u);
  EXPECT_EQ(windows[0].base, wire::kDeviceRanges[0].begin);
  EXPECT_GE(windows[0].bytes, wire::kSmallWindowBytes);
}

TEST(AddressWindowTest, OverflowsNothing) {
  wire::Hello hello;
  hello.worker = ~0u;
  hello.servers = ~0u;
  hello.taken = {{~0ull, ~0ull}, {1ull << 46, ~0ull}, {5, ~0ull - 2}, {0, 0}};
  EXPECT_FALSE(choose_window(window_request(hello, ~0ull, {})).ok());
  hello.taken.clear();
  const auto window = choose_window(window_request(hello, 0, {}));
  ASSERT_TRUE(window.ok());
  expect_disjoint({*window});
}

#if !defined(__SANITIZE_THREAD__)
constexpr uint64_t kBlackwell = 288'000'000'000;

TEST(AddressWindowTest, SixtyFourServersOfOneDevice) {
  for (const uint64_t memory : {16 * kGiB, 80 * kGiB, kBlackwell}) {
    const auto windows = windows_of(64, memory);
    ASSERT_EQ(windows.size(), 64u) << memory;
    expect_disjoint(windows);
    // All the memory, the pools of the device and of graphs, and a little more.
    for (const auto& window : windows) EXPECT_GE(window.bytes, 5 * memory);
  }
}

TEST(AddressWindowTest, EightServersOfEightLargeDevices) {
  const auto windows = windows_of(8, 8 * kBlackwell);
  ASSERT_EQ(windows.size(), 8u);
  expect_disjoint(windows);
  for (const auto& window : windows) EXPECT_GE(window.bytes, 4 * 8 * kBlackwell);
}

TEST(AddressWindowTest, AsManyServersAsASessionMayHave) {
  const auto windows = windows_of(wire::kMostServers, 80 * kGiB);
  EXPECT_EQ(windows.size(), wire::kMostServers);
  expect_disjoint(windows);
}

TEST(AddressWindowTest, WhatDoesNotFitIsRefusedWithTheRemedy) {
  const auto windows = windows_of(100, 8 * kBlackwell);
  EXPECT_GT(windows.size(), 10u);
  EXPECT_LT(windows.size(), 20u);
  expect_disjoint(windows);
  wire::Hello hello;
  hello.servers = 100;
  hello.taken = windows;
  hello.worker = static_cast<uint32_t>(windows.size());
  const Status refused = choose_window(window_request(hello, 8 * kBlackwell, {})).status();
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_NE(refused.context().find("name fewer servers or devices in RCUDA_DEVICES"),
            std::string::npos)
      << refused.message();
}

// A client that is built with AddressSanitizer maps the lowest 16 TiB.
TEST(AddressWindowTest, AvoidsWhatTheClientAndTheWorkerUse) {
  const std::vector<wire::AddressWindow> client = {{0, 16ull << 40},
                                                   {0x6500'4000'0000, 3 * kGiB + 4096}};
  const auto windows = windows_of(32, 80 * kGiB, client);
  ASSERT_EQ(windows.size(), 32u);
  std::vector<wire::AddressWindow> all = windows;
  expect_disjoint(windows);
  for (const auto& window : windows) {
    for (const auto& used : client) {
      EXPECT_TRUE(window.base >= used.base + used.bytes || used.base >= window.base + window.bytes);
    }
  }
}
#endif

// ---- the fence ---------------------------------------------------------------------------------

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Runs `body` in a process of its own, and expects that it returns 0.
template <typename Body>
void in_a_child(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

void* map(uint64_t hint, size_t bytes) {
  return ::mmap(reinterpret_cast<void*>(hint), bytes, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (hint ? MAP_FIXED_NOREPLACE : 0), -1,
                0);
}

TEST(AddressFenceTest, AllocationsLandInTheWindow) {
  for (const uint64_t base : {0x1500'0000'0000ull, 0x6500'0000'0000ull}) {
    in_a_child([&] {
      const wire::AddressWindow window{base, 200 * kGiB};
      if (!raise_fence(window).ok()) return 1;
      for (int i = 0; i < 100; ++i) {
        const auto address = reinterpret_cast<uint64_t>(map(0, kGiB));
        if (address < window.base || address >= window.base + window.bytes) return 2;
      }
      // As a driver looks for addresses for its pools: from the bottom.
      for (uint64_t at = wire::kFenceBegin; at < window.base; at += 100 * kGiB) {
        if (map(at, 1u << 20) != MAP_FAILED) return 3;
      }
      if (map(window.base, 1u << 20) == MAP_FAILED) return 4;
      // The stack can still grow, and the window cannot be fenced twice.
      volatile char deep[1 << 20];
      deep[0] = 1;
      return raise_fence(window).ok() ? 5 : deep[0] - 1;
    });
  }
}
#endif

// ---- the guard ---------------------------------------------------------------------------------

// A driver that hands out the next of a list of addresses, whatever is asked.
struct FakeDriver {
  std::vector<CUdeviceptr> next;
  std::vector<CUdeviceptr> freed;
  CUdeviceptr hint = 0;

  CUresult give(CUdeviceptr* address) {
    if (next.empty()) return CUDA_ERROR_OUT_OF_MEMORY;
    *address = next.front();
    next.erase(next.begin());
    return CUDA_SUCCESS;
  }
};
FakeDriver* fake = nullptr;

class WindowGuardTest : public ::testing::Test {
 protected:
  WindowGuardTest() {
    fake = &fake_;
    table_.cuMemAlloc_v2 = [](CUdeviceptr* address, size_t) { return fake->give(address); };
    table_.cuMemFree_v2 = [](CUdeviceptr address) {
      fake->freed.push_back(address);
      return CUDA_SUCCESS;
    };
    table_.cuMemAllocAsync = [](CUdeviceptr* address, size_t, CUstream) {
      return fake->give(address);
    };
    table_.cuMemFreeAsync = [](CUdeviceptr address, CUstream) {
      fake->freed.push_back(address);
      return CUDA_SUCCESS;
    };
    table_.cuMemAddressReserve = [](CUdeviceptr* address, size_t, size_t, CUdeviceptr hint,
                                    unsigned long long) {
      fake->hint = hint;
      return fake->give(address);
    };
    table_.cuMemAddressFree = [](CUdeviceptr address, size_t) {
      fake->freed.push_back(address);
      return CUDA_SUCCESS;
    };
    guard_.emplace(table_, wire::AddressWindow{kBase, 4 * kGiB});
  }

  static constexpr CUdeviceptr kBase = wire::kDeviceRanges[0].begin + kGiB;
  static constexpr CUdeviceptr kOutside = kBase - 4096;
  const api::DriverTable& driver() { return guard_->table(); }

  FakeDriver fake_;
  api::DriverTable table_{};
  std::optional<WindowGuard> guard_;
  CUdeviceptr address_ = 0;
};

TEST_F(WindowGuardTest, SmallPiecesOutsideAreKeptAndTheNextIsTaken) {
  fake_.next = {kOutside, kBase + 4 * kGiB, kBase + 512};
  EXPECT_EQ(driver().cuMemAlloc_v2(&address_, 512), CUDA_SUCCESS);
  EXPECT_EQ(address_, kBase + 512);
  EXPECT_TRUE(fake_.freed.empty());
}

TEST_F(WindowGuardTest, LargeMemoryOutsideIsGivenBackAndRefused) {
  fake_.next = {kBase + 3 * kGiB, kBase};
  EXPECT_EQ(driver().cuMemAlloc_v2(&address_, 2 * kGiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(fake_.freed, (std::vector<CUdeviceptr>{kBase + 3 * kGiB})) << "its end is outside";
}

TEST_F(WindowGuardTest, ADriverThatStaysOutsideIsNotAskedForEver) {
  fake_.next.assign(100'000, kOutside);
  EXPECT_EQ(driver().cuMemAlloc_v2(&address_, 512), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_GT(fake_.next.size(), 90'000u);
}

TEST_F(WindowGuardTest, MemoryOfAPoolOutsideIsRefused) {
  fake_.next = {kOutside, kBase};
  EXPECT_EQ(driver().cuMemAllocAsync(&address_, 512, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(fake_.freed, (std::vector<CUdeviceptr>{kOutside}));
  EXPECT_EQ(driver().cuMemAllocAsync(&address_, 512, nullptr), CUDA_SUCCESS);
}

TEST_F(WindowGuardTest, AReservationOutsideIsMoved) {
  fake_.next = {kOutside, kBase + kGiB};
  EXPECT_EQ(driver().cuMemAddressReserve(&address_, kGiB, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(address_, kBase + kGiB);
  EXPECT_EQ(fake_.freed, (std::vector<CUdeviceptr>{kOutside}));
  EXPECT_GE(fake_.hint, kBase);
  EXPECT_LE(fake_.hint, kBase + 3 * kGiB);
}

TEST_F(WindowGuardTest, AHintAboveWhichNothingIsFreeIsDropped) {
  table_.cuMemAddressReserve = [](CUdeviceptr* address, size_t, size_t, CUdeviceptr hint,
                                  unsigned long long) {
    return hint ? CUDA_ERROR_OUT_OF_MEMORY : fake->give(address);
  };
  fake_.next = {kBase};
  EXPECT_EQ(driver().cuMemAddressReserve(&address_, kGiB, 0, kBase + 3 * kGiB, 0), CUDA_SUCCESS);
  EXPECT_EQ(address_, kBase);
}

TEST_F(WindowGuardTest, AReservationLargerThanTheWindowIsRefused) {
  fake_.next = {kOutside, kBase};
  EXPECT_EQ(driver().cuMemAddressReserve(&address_, 5 * kGiB, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(fake_.freed, (std::vector<CUdeviceptr>{kOutside}));
  EXPECT_EQ(fake_.next.size(), 1u) << "no place is free, so the driver is not asked again";
}

}  // namespace
}  // namespace rcuda::server
