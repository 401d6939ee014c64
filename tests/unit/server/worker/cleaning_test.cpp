// What is noticed of what a session has left in its worker.
#include "server/worker/cleaning.h"

#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/session_harness.h"

namespace rcuda::server {
namespace {

bool names(const Status& status, const std::string& what) {
  return !status.ok() && status.message().find(what) != std::string::npos;
}

TEST(CleaningTest, TheFirstDifferenceIsNamed) {
  EXPECT_TRUE(compare({}, {}).ok());
  EXPECT_TRUE(compare({{"one", 1}}, {{"one", 1}}).ok());
  EXPECT_TRUE(names(compare({{"one", 1}}, {{"one", 2}}), "one: 1 before, 2 now"));
  EXPECT_TRUE(names(compare({{"one", 1}}, {}), "one: 1 before, 0 now"));
  EXPECT_TRUE(names(compare({}, {{"two", 1}}), "two: 0 before, 1 now"));
}

class ProcessStateTest : public ::testing::Test {
 protected:
  Status changed() const { return compare(before_, process_state()); }
  void TearDown() override { EXPECT_TRUE(changed().ok()) << changed().message(); }
  const ProcessState before_ = process_state();
};

TEST_F(ProcessStateTest, NothingChanges) {}

TEST_F(ProcessStateTest, ADescriptor) {
  const UniqueFd file(::open("/etc/passwd", O_RDONLY | O_CLOEXEC));
  EXPECT_TRUE(names(changed(), "descriptor of /etc/passwd"));
}

TEST_F(ProcessStateTest, APipe) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd one(ends[0]), other(ends[1]);
  EXPECT_TRUE(names(changed(), "descriptor of pipe"));
}

TEST_F(ProcessStateTest, AThread) {
  std::thread thread([this] {
    pthread_setname_np(pthread_self(), "rcuda-left");
    EXPECT_TRUE(names(changed(), "thread rcuda-left"));
  });
  thread.join();
}

TEST_F(ProcessStateTest, MemoryOfAClient) {
  UniqueFd file(::memfd_create("rcuda-window", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(file.get(), 4096), 0);
  void* const memory = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file.get(), 0);
  ASSERT_NE(memory, MAP_FAILED);
  file.reset();
  EXPECT_TRUE(names(changed(), "mapping of /memfd:rcuda-window"));
  ::munmap(memory, 4096);
}

TEST_F(ProcessStateTest, AVariable) {
  ::setenv("RCUDA_LEFT", "1", 1);
  EXPECT_TRUE(names(changed(), "variable RCUDA_LEFT=1"));
  ::unsetenv("RCUDA_LEFT");
}

TEST_F(ProcessStateTest, TheWorkingDirectory) {
  char path[4096];
  ASSERT_NE(::getcwd(path, sizeof path), nullptr);
  ASSERT_EQ(::chdir("/proc"), 0);
  EXPECT_TRUE(names(changed(), "working directory"));
  ASSERT_EQ(::chdir(path), 0);
}

TEST_F(ProcessStateTest, TheUmask) {
  const mode_t mask = ::umask(0123);
  EXPECT_TRUE(names(changed(), "umask"));
  ::umask(mask);
}

TEST_F(ProcessStateTest, ALimit) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit lower{limit.rlim_cur - 1, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &lower), 0);
  EXPECT_TRUE(names(changed(), "limit " + std::to_string(RLIMIT_NOFILE)));
  ProcessState noted = before_;
  note_limits(&noted);
  EXPECT_TRUE(compare(noted, process_state()).ok());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

class DriverStateTest : public ::testing::Test {
 protected:
  DriverStateTest() {
    EXPECT_EQ(driver_.cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
    before_ = driver_state(driver_, 0, context_);
  }
  ~DriverStateTest() override { driver_.cuDevicePrimaryCtxRelease_v2(0); }
  Status changed() const { return compare(before_, driver_state(driver_, 0, context_)); }

  const api::DriverTable& driver_ = test::TestDriver::get().table;
  CUcontext context_ = nullptr;
  DriverState before_;
};

TEST_F(DriverStateTest, LimitsOfTheContext) {
  size_t usual = 0;
  ASSERT_EQ(driver_.cuCtxGetLimit(&usual, CU_LIMIT_PRINTF_FIFO_SIZE), CUDA_SUCCESS);
  ASSERT_EQ(driver_.cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 2 * usual), CUDA_SUCCESS);
  EXPECT_TRUE(names(changed(), "limit 1 of the context"));
  ASSERT_EQ(driver_.cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, usual), CUDA_SUCCESS);
  EXPECT_TRUE(changed().ok()) << changed().message();
}

TEST_F(DriverStateTest, FlagsOfTheContext) {
  ASSERT_EQ(driver_.cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_SPIN), CUDA_SUCCESS);
  EXPECT_TRUE(names(changed(), "flags of the context"));
  ASSERT_EQ(driver_.cuDevicePrimaryCtxSetFlags_v2(0, 0), CUDA_SUCCESS);
}

TEST_F(DriverStateTest, TheDefaultPool) {
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(driver_.cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
  uint64_t threshold = 1 << 20;
  ASSERT_EQ(driver_.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold),
            CUDA_SUCCESS);
  EXPECT_TRUE(names(changed(), "of the pool"));
  threshold = 0;
  ASSERT_EQ(driver_.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold),
            CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  ASSERT_EQ(driver_.cuMemAllocAsync(&memory, 1 << 20, nullptr), CUDA_SUCCESS);
  EXPECT_TRUE(names(changed(), "of the pool"));
  ASSERT_EQ(driver_.cuMemFreeAsync(memory, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(driver_.cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_TRUE(changed().ok()) << changed().message();
}

}  // namespace
}  // namespace rcuda::server
