// The choice of windows, the fence around them, and the guard that keeps a driver's memory inside.
#include "server/addresses/address_window.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/wire/address_ranges.h"
#include "server/addresses/address_fence.h"
#include "server/driver/window_guard.h"

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

// ---- bases -------------------------------------------------------------------------------------

TEST(BasesTest, EveryServerCanHaveEveryBase) {
  const Bases bases("node17.cluster", 8308);
  std::set<uint32_t> all;
  for (uint32_t i = 0; i < wire::kBaseCount; ++i) all.insert(bases.at(i));
  EXPECT_EQ(all.size(), wire::kBaseCount);
  EXPECT_EQ(*all.rbegin(), wire::kBaseCount - 1);
}

// A session needs workers with different bases. On numbered nodes the idle workers already have
// different bases.
TEST(BasesTest, NumberedNodesHaveDifferentBases) {
  std::set<uint32_t> first;
  for (uint32_t node = 0; node < wire::kBaseCount; ++node) {
    first.insert(Bases("gpu-" + std::to_string(node) + ".cluster.example", 8308).at(0));
  }
  EXPECT_EQ(first.size(), wire::kBaseCount);
}

TEST(BasesTest, ServersOfOneHostHaveDifferentBases) {
  for (const char* host : {"login", "node5", "7", "", "node99999999999"}) {
    EXPECT_NE(Bases(host, 8308).at(0), Bases(host, 8309).at(0)) << host;
  }
}

TEST(BasesTest, BasesAreDisjointAndNoWindows) {
  for (uint32_t i = 0; i < wire::kBaseCount; ++i) {
    const wire::AddressWindow range = Base{i}.range();
    EXPECT_EQ(range.base, wire::kBases.begin + i * wire::kBaseBytes);
    EXPECT_LE(range.base + range.bytes, wire::kBases.end);
  }
  for (const AddressRange& span : wire::kWindowRanges) {
    EXPECT_TRUE(span.end <= wire::kBases.begin || wire::kBases.end <= span.begin);
  }
}

TEST(BasesTest, LargerBasesHaveTheSameRange) {
  for (uint32_t doublings = 0; doublings <= kMostDoublings; ++doublings) {
    std::set<uint64_t> places;
    for (uint32_t index = 0; index < wire::kBaseCount; ++index) {
      const Base base{index, doublings};
      const wire::AddressWindow range = base.range();
      EXPECT_EQ(range.bytes, wire::kBaseBytes << doublings);
      EXPECT_GE(range.base, wire::kBases.begin);
      EXPECT_LE(range.base + range.bytes, wire::kBases.end);
      places.insert(range.base);
      const Base again = Base::from_number(base.number());
      EXPECT_EQ(again.range().base, range.base);
      EXPECT_EQ(again.range().bytes, range.bytes);
      EXPECT_EQ(again.number(), base.number());
    }
    EXPECT_EQ(places.size(), wire::kBaseCount >> doublings);
  }
  EXPECT_EQ(Base::from_number(~0u).doublings, kMostDoublings);
}

TEST(BasesTest, MachinesWithMoreGpusHaveLargerBases) {
  for (const auto& [gpus, doublings] : std::vector<std::pair<size_t, uint32_t>>{
           {0, 0}, {1, 0}, {2, 0}, {3, 1}, {4, 1}, {5, 2}, {8, 2}, {9, 3}, {16, 3}, {1000, 5}}) {
    EXPECT_EQ(doublings_for(gpus), doublings) << gpus;
  }
}

TEST(BasesTest, ARangeIsTakenIfAnyAddressIs) {
  wire::Hello hello;
  hello.taken = {{100, 10}};
  EXPECT_TRUE(is_taken(hello, {109, 10}));
  EXPECT_TRUE(is_taken(hello, {90, 11}));
  EXPECT_TRUE(is_taken(hello, {90, 100}));
  EXPECT_FALSE(is_taken(hello, {110, 10}));
  EXPECT_FALSE(is_taken(hello, {90, 10}));
}

// ---- windows -----------------------------------------------------------------------------------

struct Server {
  uint32_t devices;
  uint64_t memory_bytes;  // of each
};

const std::vector<AddressRange> kAllClosed = {{1u << 20, 1ull << 47}};

// The windows of a session, chosen one after the other, as by its workers. Ends at the first
// refusal.
std::vector<wire::AddressWindow> windows_of(const std::vector<Server>& servers,
                                            std::vector<wire::AddressWindow> taken = {}) {
  std::vector<wire::AddressWindow> windows;
  wire::Hello hello;
  hello.taken = std::move(taken);
  for (const Server& server : servers) hello.devices_left += server.devices;
  for (const Server& server : servers) {
    hello.devices.resize(server.devices);
    const auto window =
        choose_window(window_request(hello, server.devices * server.memory_bytes, kAllClosed));
    if (!window.ok()) break;
    windows.push_back(*window);
    hello.taken.push_back(*window);
    hello.devices_left -= server.devices;
  }
  return windows;
}

std::vector<wire::AddressWindow> windows_of(size_t servers, const Server& each,
                                            std::vector<wire::AddressWindow> taken = {}) {
  return windows_of(std::vector<Server>(servers, each), std::move(taken));
}

bool lies_in_a_window_range(const wire::AddressWindow& window) {
  return std::any_of(std::begin(wire::kWindowRanges), std::end(wire::kWindowRanges),
                     [&](const AddressRange& span) {
                       return window.base >= span.begin && window.base + window.bytes <= span.end;
                     });
}

void expect_disjoint(std::vector<wire::AddressWindow> windows) {
  std::sort(windows.begin(), windows.end(),
            [](const auto& a, const auto& b) { return a.base < b.base; });
  for (size_t i = 0; i < windows.size(); ++i) {
    EXPECT_TRUE(lies_in_a_window_range(windows[i])) << std::hex << windows[i].base;
    if (i == 0) continue;
    EXPECT_LE(windows[i - 1].base + windows[i - 1].bytes, windows[i].base);
  }
}

TEST(AddressWindowTest, OneServerHasMoreThanItsDevicesNeed) {
  const auto windows = windows_of(1, {1, 80 * kGiB});
  ASSERT_EQ(windows.size(), 1u);
  expect_disjoint(windows);
  EXPECT_GE(windows[0].bytes, wire::kSmallWindowBytes);
}

TEST(AddressWindowTest, OverflowsNothing) {
  wire::Hello hello;
  hello.devices_left = ~0u;
  hello.taken = {{~0ull, ~0ull}, {1ull << 46, ~0ull}, {5, ~0ull - 2}, {0, 0}};
  EXPECT_FALSE(choose_window(window_request(hello, ~0ull, kAllClosed)).ok());
  EXPECT_FALSE(choose_window(window_request(hello, 0, {})).ok());
  hello.taken.clear();
  const auto window = choose_window(window_request(hello, 0, kAllClosed));
  ASSERT_TRUE(window.ok());
  expect_disjoint({*window});
}

#if !defined(__SANITIZE_THREAD__)
constexpr uint64_t kBlackwell = 288'000'000'000;

TEST(AddressWindowTest, SixtyFourServersOfOneDevice) {
  for (const uint64_t memory : {16 * kGiB, 80 * kGiB, kBlackwell}) {
    const auto windows = windows_of(64, {1, memory});
    ASSERT_EQ(windows.size(), 64u) << memory;
    expect_disjoint(windows);
    // The size allows for all the memory, the device's pool, and a reservation of twice the memory
    // or the memory of graphs.
    for (const auto& window : windows) EXPECT_GE(window.bytes, 5 * memory);
  }
}

TEST(AddressWindowTest, EightServersOfEightLargeDevices) {
  const auto windows = windows_of(8, {8, kBlackwell});
  ASSERT_EQ(windows.size(), 8u);
  expect_disjoint(windows);
  for (const auto& window : windows) EXPECT_GE(window.bytes, 5 * 8 * kBlackwell);
}

TEST(AddressWindowTest, ALargeServerAfterManySmallOnesHasItsShare) {
  std::vector<Server> servers(56, {1, kBlackwell});
  servers.push_back({8, kBlackwell});
  const auto windows = windows_of(servers);
  ASSERT_EQ(windows.size(), servers.size());
  expect_disjoint(windows);
  EXPECT_GE(windows.back().bytes, 4 * 8 * kBlackwell);
}

TEST(AddressWindowTest, AsManyServersAsASessionMayHave) {
  const auto windows = windows_of(wire::kMostServers, {1, 80 * kGiB});
  EXPECT_EQ(windows.size(), wire::kMostServers);
  expect_disjoint(windows);
}

TEST(AddressWindowTest, WhatDoesNotFitIsRefusedWithTheRemedy) {
  const auto windows = windows_of(100, {8, kBlackwell});
  EXPECT_GT(windows.size(), 10u);
  EXPECT_LT(windows.size(), 20u);
  expect_disjoint(windows);
  wire::Hello hello;
  hello.taken = windows;
  const Status refused = choose_window(window_request(hello, 8 * kBlackwell, kAllClosed)).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_NE(refused.context().find("name fewer servers or devices in RCUDA_DEVICES"),
            std::string::npos)
      << refused.message();
}

// A client that is built with AddressSanitizer maps the lowest 16 TiB.
TEST(AddressWindowTest, AvoidsWhatTheClientAndTheWorkerUse) {
  const std::vector<wire::AddressWindow> client = {{0, 16ull << 40},
                                                   {0x1500'4000'0000, 3 * kGiB + 4096}};
  const auto windows = windows_of(32, {1, 80 * kGiB}, client);
  ASSERT_EQ(windows.size(), 32u);
  expect_disjoint(windows);
  wire::Hello hello;
  hello.taken = client;
  for (const auto& window : windows) EXPECT_FALSE(is_taken(hello, window));

  const AddressRange closed{0x1100'0000'0000 + 5 * kGiB, 0x1100'0000'0000 + 70 * kGiB};
  const auto inside = choose_window(window_request({}, kGiB, {closed}));
  ASSERT_TRUE(inside.ok());
  EXPECT_EQ(inside->base, closed.begin);
  EXPECT_EQ(inside->bytes, closed.end - closed.begin);
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

bool maps_inside(const AddressFence& fence, size_t bytes) {
  void* const got = map(0, bytes);
  return got != MAP_FAILED && fence.contains(reinterpret_cast<uint64_t>(got), bytes);
}

// Whether the lowest free address is inside of the fence. Drivers search for the addresses of their
// pools from the bottom.
bool lowest_is_inside(const AddressFence& fence) {
  for (uint64_t at = wire::kFenceBegin; at < wire::kBases.end; at += wire::kBaseBytes / 2) {
    if (map(at, 1u << 20) != MAP_FAILED) return fence.contains(at, 1u << 20);
  }
  return false;
}

TEST(AddressFenceTest, AllocationsLandInTheBaseAndThenInTheWindow) {
  in_a_child([] {
    const wire::AddressWindow base = Base{5}.range();
    Result<AddressFence> fence = AddressFence::raise(base);
    if (!fence.ok()) return 1;
    if (!maps_inside(*fence, kGiB)) return 2;
    if (map(0, 2 * base.bytes) != MAP_FAILED) return 3;  // too large before the window is open
    if (!lowest_is_inside(*fence)) return 4;
    const auto window = choose_window(window_request({}, 80 * kGiB, fence->closed()));
    if (!window.ok() || !fence->open(*window).ok()) return 5;
    for (int i = 0; i < 100; ++i) {
      if (!maps_inside(*fence, kGiB)) return 6;
    }
    if (!maps_inside(*fence, 2 * base.bytes)) return 7;
    if (!lowest_is_inside(*fence)) return 8;
    if (fence->inside().size() != 2) return 9;
    // The stack can still grow, memory can be allocated, and nothing can be opened or raised twice.
    volatile char deep[1 << 20];
    deep[0] = 1;
    const std::vector<char> heap(64u << 20, 1);
    if (fence->open(*window).ok()) return 10;
    return AddressFence::raise(base).ok() ? 11 : deep[0] - heap.back();
  });
}

TEST(AddressFenceTest, ALimitOnAddressesIsNamed) {
  in_a_child([] {
    const rlimit limit{1ull << 40, 1ull << 40};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) return 1;
    const Status status = AddressFence::raise(Base{5}.range()).status();
    return status.context().find("ulimit -v") != std::string::npos ? 0 : 2;
  });
}

// exec() applies the layout, so the test runs this program again.
TEST(AddressFenceTest, TheLegacyLayoutHasFencesToo) {
  in_a_child([] {
    ::personality(ADDR_COMPAT_LAYOUT);
    ::execl("/proc/self/exe", "test", "--gtest_filter=AddressFenceTest.A*:AddressFenceTest.H*",
            "--gtest_brief=1", nullptr);
    return 127;
  });
}

TEST(AddressFenceTest, HolesAreClosed) {
  in_a_child([] {
    // This mapping stays when the fence is raised around it.
    void* const before = map(0, 1u << 20);
    Result<AddressFence> fence = AddressFence::raise(Base{7}.range());
    if (!fence.ok() || fence->close_holes() != 0) return 1;
    ::munmap(before, 1u << 20);
    if (map(0, 1u << 20) != before) return 2;  // a hole in the fence, which a driver would get
    ::munmap(before, 1u << 20);
    if (fence->close_holes() != 1) return 3;
    return maps_inside(*fence, 1u << 20) ? 0 : 4;
  });
}
#endif

// ---- the guard ---------------------------------------------------------------------------------

// A driver that returns the next address of a list for each allocation, whatever its size.
struct FakeDriver {
  std::vector<CUdeviceptr> next;
  std::vector<CUdeviceptr> freed;
  CUdeviceptr hint = 0;
  size_t destroyed_nodes = 0;

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
    table_.cuMemAllocManaged = [](CUdeviceptr* address, size_t, unsigned) {
      return fake->give(address);
    };
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
    table_.cuIpcOpenMemHandle_v2 = [](CUdeviceptr* address, CUipcMemHandle, unsigned) {
      return fake->give(address);
    };
    table_.cuIpcCloseMemHandle = [](CUdeviceptr address) {
      fake->freed.push_back(address);
      return CUDA_SUCCESS;
    };
    table_.cuMemPoolImportPointer = [](CUdeviceptr* address, CUmemoryPool,
                                       CUmemPoolPtrExportData*) { return fake->give(address); };
    table_.cuModuleGetGlobal_v2 = [](CUdeviceptr* address, size_t* bytes, CUmodule, const char*) {
      if (bytes) *bytes = 512;
      return address ? fake->give(address) : CUDA_SUCCESS;
    };
    table_.cuLibraryGetGlobal = [](CUdeviceptr* address, size_t*, CUlibrary, const char*) {
      return fake->give(address);
    };
    table_.cuLibraryGetManaged = table_.cuLibraryGetGlobal;
    table_.cuGraphAddMemAllocNode = [](CUgraphNode*, CUgraph, const CUgraphNode*, size_t,
                                       CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
      return fake->give(&parameters->dptr);
    };
    table_.cuGraphDestroyNode = [](CUgraphNode) {
      ++fake->destroyed_nodes;
      return CUDA_SUCCESS;
    };
    guard_.emplace(table_, fence_);
  }

  // In the last range, where AddressSanitizer has mapped nothing.
  static constexpr CUdeviceptr kBase =
      wire::kWindowRanges[std::size(wire::kWindowRanges) - 1].begin + kGiB;
  static constexpr CUdeviceptr kOutside = kBase - 4096;
  const api::DriverTable& driver() { return guard_->table(); }

  FakeDriver fake_;
  api::DriverTable table_{};
  const AddressFence fence_{{{kBase, 4 * kGiB}}};
  std::optional<WindowGuard> guard_;
  CUdeviceptr address_ = 0;
};

// A free may wait for the device. So memory outside of the window is freed only together with a
// free of the program.
TEST_F(WindowGuardTest, PiecesOutsideAreKeptUntilTheNextFree) {
  fake_.next = {kOutside, kBase + 4 * kGiB, kBase + 512};
  EXPECT_EQ(driver().cuMemAlloc_v2(&address_, 512), CUDA_SUCCESS);
  EXPECT_EQ(address_, kBase + 512);
  EXPECT_TRUE(fake_.freed.empty());
  EXPECT_EQ(driver().cuMemFree_v2(address_), CUDA_SUCCESS);
  EXPECT_EQ(fake_.freed, (std::vector<CUdeviceptr>{kBase + 512, kOutside, kBase + 4 * kGiB}));
  EXPECT_EQ(driver().cuMemFree_v2(kBase), CUDA_SUCCESS);
  EXPECT_EQ(fake_.freed.size(), 4u);
}

TEST_F(WindowGuardTest, ManagedMemoryIsPlainMemory) {
  fake_.next = {kOutside, kBase};
  EXPECT_EQ(driver().cuMemAllocManaged(&address_, 512, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(address_, kBase);
  EXPECT_EQ(driver().cuMemFree_v2(address_), CUDA_SUCCESS);
  EXPECT_EQ(fake_.freed, (std::vector<CUdeviceptr>{kBase, kOutside}));
}

TEST_F(WindowGuardTest, LargeMemoryOutsideIsRefused) {
  fake_.next = {kBase + 3 * kGiB, kBase};
  EXPECT_EQ(driver().cuMemAlloc_v2(&address_, 2 * kGiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(fake_.freed.empty()) << "its end is outside";
  EXPECT_EQ(driver().cuMemAlloc_v2(&address_, 2 * kGiB), CUDA_SUCCESS);
  EXPECT_EQ(driver().cuMemFree_v2(address_), CUDA_SUCCESS);
  EXPECT_EQ(fake_.freed, (std::vector<CUdeviceptr>{kBase, kBase + 3 * kGiB}));
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

TEST_F(WindowGuardTest, MemoryOfAnotherProcessOutsideIsClosed) {
  fake_.next = {kOutside, kBase};
  EXPECT_EQ(driver().cuIpcOpenMemHandle_v2(&address_, {}, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(fake_.freed, (std::vector<CUdeviceptr>{kOutside}));
  EXPECT_EQ(driver().cuIpcOpenMemHandle_v2(&address_, {}, 0), CUDA_SUCCESS);
}

TEST_F(WindowGuardTest, ImportedMemoryOfAPoolOutsideIsFreed) {
  fake_.next = {kOutside, kBase};
  const auto import = driver().cuMemPoolImportPointer;
  EXPECT_EQ(import(&address_, nullptr, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(fake_.freed, (std::vector<CUdeviceptr>{kOutside}));
  EXPECT_EQ(import(&address_, nullptr, nullptr), CUDA_SUCCESS);
}

TEST_F(WindowGuardTest, VariablesOutsideAreRefused) {
  fake_.next = {kBase + 4 * kGiB - 512, kBase + 4 * kGiB - 511, kOutside, kOutside, kBase};
  size_t bytes = 0;
  const auto of_module = driver().cuModuleGetGlobal_v2;
  EXPECT_EQ(of_module(&address_, &bytes, nullptr, "variable"), CUDA_SUCCESS);
  EXPECT_EQ(of_module(&address_, &bytes, nullptr, "variable"), CUDA_ERROR_OUT_OF_MEMORY)
      << "its end is outside";
  EXPECT_EQ(of_module(nullptr, &bytes, nullptr, "variable"), CUDA_SUCCESS);
  for (const auto of_library : {driver().cuLibraryGetGlobal, driver().cuLibraryGetManaged}) {
    EXPECT_EQ(of_library(&address_, nullptr, nullptr, "variable"), CUDA_ERROR_OUT_OF_MEMORY);
  }
  EXPECT_EQ(driver().cuLibraryGetGlobal(&address_, nullptr, nullptr, "variable"), CUDA_SUCCESS);
  EXPECT_TRUE(fake_.freed.empty());
}

TEST_F(WindowGuardTest, OtherEntriesAreThoseOfTheDriver) {
  table_.cuLaunchKernel = [](CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             unsigned, CUstream, void**, void**) { return CUDA_SUCCESS; };
  guard_.emplace(table_, fence_);
  EXPECT_EQ(driver().cuLaunchKernel, table_.cuLaunchKernel);
  EXPECT_EQ(driver().cuMemCreate, nullptr);
  EXPECT_NE(driver().cuMemAlloc_v2, table_.cuMemAlloc_v2);
}

TEST_F(WindowGuardTest, ANodeWithMemoryOutsideIsDestroyed) {
  fake_.next = {kOutside, kBase};
  CUgraphNode node = nullptr;
  CUDA_MEM_ALLOC_NODE_PARAMS parameters{};
  parameters.bytesize = 512;
  const auto add = driver().cuGraphAddMemAllocNode;
  EXPECT_EQ(add(&node, nullptr, nullptr, 0, &parameters), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(fake_.destroyed_nodes, 1u);
  EXPECT_EQ(add(&node, nullptr, nullptr, 0, &parameters), CUDA_SUCCESS);
  EXPECT_EQ(fake_.destroyed_nodes, 1u);
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
