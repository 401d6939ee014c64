// The windows of device addresses that a session accepts, and the addresses in them that may be
// mapped.
#include "client/session/address_windows.h"

#include <cstdint>
#include <cstdio>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/session/session.h"
#include "common/wire/address_ranges.h"
#include "tests/support/puppet_server.h"

namespace rcuda::client {
namespace {

constexpr uint64_t kUnit = wire::kWindowUnit;
// The last base. Puppets (tests/support/puppet_server.h) use the first bases.
constexpr uint64_t kFree = wire::kBases.end - wire::kBaseBytes;

Status reserve(const std::vector<wire::AddressWindow>& windows,
               const std::vector<wire::AddressWindow>& taken = {}) {
  AddressWindows made;
  const Status status = made.reserve(windows, taken);
  EXPECT_EQ(made.owns(kFree, 1), status.ok());
  return status;
}

bool is_mapped(uint64_t address) {
  unsigned char in_core = 0;
  return ::mincore(reinterpret_cast<void*>(address), 1, &in_core) == 0;
}

TEST(AddressWindowsTest, OnlyDeviceAddressesAreWindows) {
  EXPECT_TRUE(reserve({{kFree, kUnit}}).ok());
  EXPECT_TRUE(reserve({{kFree, kUnit}, {kFree + kUnit, kUnit}}).ok());
  const uint64_t heap = reinterpret_cast<uintptr_t>(&heap) / 4096 * 4096;
  const std::vector<std::vector<wire::AddressWindow>> wrong = {
      {},
      {{kFree, 0}},
      {{kFree + 8, kUnit}},
      {{kFree, kUnit + 8}},
      {{0, kUnit}},
      {{0x400000, 4096}},
      {{heap, 4096}},
      {{wire::kHostRangeBase, kUnit}},
      {{wire::kBases.begin - kUnit, 2 * kUnit}},
      {{kFree, wire::kBaseBytes + kUnit}},
      {{kFree, ~uint64_t{0} - 4095}},
      {{~uint64_t{0} - 4095, 4096}},
      {{kFree, kUnit}, {kFree + kUnit, kUnit}, {kFree + 2 * kUnit, kUnit}},
  };
  for (const auto& windows : wrong) {
    const Status status = reserve(windows);
    EXPECT_EQ(status.code(), Code::kProtocol) << status.message();
    EXPECT_FALSE(is_mapped(kFree));
  }
}

TEST(AddressWindowsTest, WhatTheProgramUsesIsNoWindow) {
  EXPECT_EQ(reserve({{kFree, 2 * kUnit}}, {{kFree + kUnit, kUnit}}).code(), Code::kProtocol);
  EXPECT_TRUE(reserve({{kFree, kUnit}}, {{kFree + kUnit, kUnit}}).ok());
  void* const used = ::mmap(reinterpret_cast<void*>(kFree + kUnit), 4096, PROT_READ,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  ASSERT_NE(used, MAP_FAILED);
  EXPECT_EQ(reserve({{kFree, kUnit}, {kFree + kUnit, kUnit}}).code(), Code::kUnavailable);
  EXPECT_FALSE(is_mapped(kFree)) << "the first window stays reserved";
  ::munmap(used, 4096);
}

TEST(AddressWindowsTest, OwnsWholeRangesOnly) {
  const AddressWindows windows({{kFree, kUnit}, {kFree + 2 * kUnit, kUnit}});
  EXPECT_TRUE(windows.owns(kFree, kUnit));
  EXPECT_TRUE(windows.owns(kFree + kUnit - 1, 0));
  EXPECT_FALSE(windows.owns(kFree - 1, 2));
  EXPECT_FALSE(windows.owns(kFree + kUnit, 0));
  EXPECT_FALSE(windows.owns(kFree + kUnit - 1, 2));
  EXPECT_FALSE(windows.owns(kFree, 3 * kUnit)) << "there is a gap";
  EXPECT_FALSE(windows.owns(kFree + 8, ~uint64_t{0}));
  EXPECT_FALSE(windows.owns(0, ~uint64_t{0}));
}

TEST(AddressWindowsTest, OpensPagesOfTheWindowsAlone) {
  AddressWindows windows;
  ASSERT_TRUE(windows.reserve({{kFree, kUnit}}, {}).ok());
  const uint64_t last = kFree + kUnit - 4096;
  EXPECT_FALSE(windows.open(kFree - 4096, 8192));
  EXPECT_FALSE(windows.open(last, 8192));
  EXPECT_FALSE(windows.open(kFree + 8, 4096));
  EXPECT_FALSE(windows.open(kFree, 0));
  ASSERT_TRUE(windows.open(last, 4096));
  *reinterpret_cast<volatile int*>(last) = 7;
  ASSERT_TRUE(windows.open(last, 4096));
  EXPECT_EQ(*reinterpret_cast<volatile int*>(last), 0);
  windows.close(last, 4096);
  EXPECT_DEATH((void)*reinterpret_cast<volatile int*>(last), "");
}

// A process with a limit on its address space (RLIMIT_AS) cannot reserve a window, but still works.
TEST(AddressWindowsTest, UnderALimitNothingThatIsMappedIsReplaced) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto works = [&] {
      AddressWindows windows;
      unsigned long long pages = 0;
      std::FILE* const sizes = std::fopen("/proc/self/statm", "re");
      if (!sizes || std::fscanf(sizes, "%llu", &pages) != 1) return 8;
      const rlimit limit{pages * 4096 + kUnit, RLIM_INFINITY};
      if (::setrlimit(RLIMIT_AS, &limit) != 0) return 1;
      if (!windows.reserve({{kFree, wire::kBaseBytes}}, {}).ok() || windows.are_reserved())
        return 2;
      if (!windows.owns(kFree, 4096)) return 3;
      auto* const used = static_cast<int*>(
          ::mmap(reinterpret_cast<void*>(kFree + 8192), 4096, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
      *used = 9;
      if (windows.open(kFree + 4096, 8192) || windows.open(kFree + 8192, 4096)) return 4;
      windows.close(kFree + 8192, 4096);
      if (*used != 9) return 5;
      if (!windows.open(kFree, 4096) || !windows.open(kFree, 4096)) return 6;
      windows.close(kFree, 4096);
      return is_mapped(kFree) ? 7 : 0;
    };
    ::_exit(works());
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(AddressWindowsTest, ASessionWithWrongWindowsIsRefused) {
  wire::Welcome welcome = test::PuppetServer::welcome_with(1);
  welcome.windows = {{0x400000, 4096}};
  test::PuppetServer puppet(std::move(welcome));
  puppet.let_client_leave();
  const auto session = Session::open({nullptr, "127.0.0.1", puppet.port(), {0}, {0}}, {});
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.status().code(), Code::kProtocol);
  const std::string text = session.status().message();
  EXPECT_NE(text.find("127.0.0.1:" + std::to_string(puppet.port())), std::string::npos) << text;
  EXPECT_NE(text.find("0x400000"), std::string::npos) << text;
}

}  // namespace
}  // namespace rcuda::client
