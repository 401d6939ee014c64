// Page-locked memory in sessions over shared memory: the commands that workers receive for it.
#include "client/hostmem/host_memory.h"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/base/mappings.h"
#include "common/base/unique_fd.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

const size_t kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));

class HostMemoryTest : public TwoPuppetsTest {
 protected:
  void SetUp() override {
    TwoPuppetsTest::SetUp();
    (void)sent(wire::Custom::kHostExpose);
    (void)sent(wire::Custom::kHostUnexpose);
    (void)sent(wire::Custom::kMirror);
  }
  void TearDown() override {
    munmap(memory_, kBytes);
    TwoPuppetsTest::TearDown();
  }

  void map(int sharing) {
    memory_ = static_cast<std::byte*>(
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(memory_, MAP_FAILED);
  }
  CUresult enroll(unsigned flags = 0) { return register_host(memory_, kBytes, flags); }
  void protect(size_t page, int protection) const {
    ASSERT_EQ(mprotect(memory_ + page * kPage, kPage, protection), 0);
  }
  std::vector<wire::HostExposeBody> exposed() {
    std::vector<wire::HostExposeBody> bodies;
    for (const Command& command : sent(wire::Custom::kHostExpose)) {
      bodies.push_back(command.as<wire::HostExposeBody>());
    }
    return bodies;
  }
  bool mirrored() { return is_mirrored(first_session(), address(), kBytes); }
  uint64_t address() const { return reinterpret_cast<uintptr_t>(memory_); }

  const size_t kBytes = 4 * kPage;
  std::byte* memory_ = nullptr;
};

TEST_F(HostMemoryTest, WorkersMapTheApplicationsOwnPages) {
  map(MAP_PRIVATE);
  ASSERT_EQ(enroll(CU_MEMHOSTREGISTER_DEVICEMAP), CUDA_SUCCESS);
  const auto bodies = exposed();
  ASSERT_EQ(bodies.size(), 1u);
  EXPECT_EQ(bodies[0].address, address());
  EXPECT_EQ(bodies[0].has_backing, 1u);
  EXPECT_FALSE(mirrored());
  EXPECT_EQ(unregister_host(memory_), CUDA_SUCCESS);
}

// Before Linux 6.11, a query reads all mappings of the process, so the client makes few queries.
TEST_F(HostMemoryTest, ARegistrationAndItsEndAskForTheMappingsOnceEach) {
  map(MAP_PRIVATE);
  const uint64_t before = mapping_queries();
  ASSERT_EQ(enroll(CU_MEMHOSTREGISTER_DEVICEMAP), CUDA_SUCCESS);
  EXPECT_EQ(mapping_queries(), before + 1);
  EXPECT_EQ(unregister_host(memory_), CUDA_SUCCESS);
  EXPECT_EQ(mapping_queries(), before + 2);
}

TEST_F(HostMemoryTest, PagesThatOthersSeeAreMirrored) {
  map(MAP_SHARED);
  ASSERT_EQ(enroll(), CUDA_SUCCESS);
  const auto bodies = exposed();
  ASSERT_EQ(bodies.size(), 1u);
  EXPECT_EQ(bodies[0].has_backing, 0u);
  EXPECT_FALSE(mirrored()) << "no work uses it yet";
  mirror_reachable(any_route(), memory_ + 100);
  EXPECT_TRUE(mirrored());
  EXPECT_EQ(unregister_host(memory_), CUDA_SUCCESS);
  EXPECT_FALSE(mirrored());
  EXPECT_EQ(sent(wire::Custom::kHostUnexpose).size(), 1u);
}

TEST_F(HostMemoryTest, MappedMemoryOfOthersIsMirroredAtOnce) {
  map(MAP_SHARED);
  ASSERT_EQ(enroll(CU_MEMHOSTREGISTER_DEVICEMAP), CUDA_SUCCESS);
  EXPECT_TRUE(mirrored());
  EXPECT_EQ(unregister_host(memory_), CUDA_SUCCESS);
}

// For example io_uring: the kernel reads and writes the pages that it has pinned.
TEST_F(HostMemoryTest, PagesThatOthersHavePinnedAreMirrored) {
  map(MAP_PRIVATE);
  io_uring_params parameters{};
  const UniqueFd ring(static_cast<int>(::syscall(__NR_io_uring_setup, 1, &parameters)));
  if (!ring) GTEST_SKIP() << "io_uring is not permitted here: " << std::strerror(errno);
  const iovec pinned{memory_, kPage};
  ASSERT_EQ(::syscall(__NR_io_uring_register, ring.get(), IORING_REGISTER_BUFFERS, &pinned, 1), 0);
  ASSERT_EQ(enroll(CU_MEMHOSTREGISTER_DEVICEMAP), CUDA_SUCCESS);
  const auto bodies = exposed();
  ASSERT_EQ(bodies.size(), 1u);
  EXPECT_EQ(bodies[0].has_backing, 0u);
  EXPECT_TRUE(mirrored());
  EXPECT_EQ(unregister_host(memory_), CUDA_SUCCESS);
}

// The results are those of driver 580 on an H100.
TEST_F(HostMemoryTest, MemoryMustBeWritableUnlessTheGpuOnlyReadsIt) {
  map(MAP_PRIVATE);
  protect(1, PROT_READ);
  EXPECT_EQ(enroll(), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(enroll(CU_MEMHOSTREGISTER_DEVICEMAP), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(enroll(CU_MEMHOSTREGISTER_READ_ONLY), CUDA_SUCCESS);
  EXPECT_EQ(unregister_host(memory_), CUDA_SUCCESS);
  protect(2, PROT_NONE);
  EXPECT_EQ(enroll(CU_MEMHOSTREGISTER_READ_ONLY), CUDA_ERROR_INVALID_VALUE);
  munmap(memory_ + 2 * kPage, kPage);
  EXPECT_EQ(enroll(CU_MEMHOSTREGISTER_READ_ONLY), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(HostMemoryTest, MemoryDoesNotEndWhileItBecomesMirrored) {
  map(MAP_SHARED);
  ASSERT_EQ(enroll(), CUDA_SUCCESS);
  std::thread ends;
  // Runs on the puppet's thread, while mirror_reachable() waits for the answer.
  first().on(wire::Custom::kMirror, [&](const Command&) {
    if (!ends.joinable()) {
      ends = std::thread([&] {
        push_context(process().device(0)->primary);
        EXPECT_EQ(unregister_host(memory_), CUDA_SUCCESS);
        pop_context();
      });
      // The other thread has removed the memory from the registry before it waits.
      while (process().memory().find(address())) std::this_thread::yield();
    }
    return test::PuppetServer::Answer{};
  });
  mirror_reachable(any_route(), memory_);
  ends.join();
  EXPECT_FALSE(mirrored());
  first().on(wire::Custom::kMirror, [](const Command&) { return test::PuppetServer::Answer{}; });
}

TEST_F(HostMemoryTest, MemoryThatCannotBeRecordedIsTakenBackFromTheWorkers) {
  map(MAP_PRIVATE);
  void* allocated = nullptr;
  ASSERT_EQ(allocate_host(&allocated, 100, 0, false), CUDA_SUCCESS);
  ASSERT_EQ(free_host(allocated), CUDA_SUCCESS);
  (void)sent(wire::Custom::kHostExpose);
  (void)sent(wire::Custom::kHostUnexpose);
  // The next allocation has the same address.
  Allocation other;
  other.base = reinterpret_cast<uintptr_t>(allocated);
  other.bytes = 1;
  other.placement = Placement::kRegistered;
  ASSERT_TRUE(process().memory().add(other));
  void* refused = nullptr;
  EXPECT_NE(allocate_host(&refused, 100, 0, false), CUDA_SUCCESS);
  EXPECT_EQ(sent(wire::Custom::kHostExpose).size(), 1u);
  EXPECT_EQ(sent(wire::Custom::kHostUnexpose).size(), 1u);
  process().memory().remove(other.base);
}

}  // namespace
}  // namespace rcuda::client
