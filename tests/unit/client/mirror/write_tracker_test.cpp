// WriteTracker reports pages that were written by instructions and by system calls.
#include "client/mirror/write_tracker.h"

#include <cstring>
#include <memory>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/unique_fd.h"

namespace rcuda::client {
namespace {

const size_t kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));
constexpr size_t kPages = 64;

class WriteTrackerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    tracker_ = WriteTracker::get();
    if (!tracker_) GTEST_SKIP() << "this kernel does not track writes for this process";
    void* memory =
        mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    memory_ = static_cast<char*>(memory);
    ASSERT_TRUE(tracker_->watch(memory_, kPages * kPage));
  }
  void TearDown() override {
    if (memory_) munmap(memory_, kPages * kPage);
  }

  // Takes the pages that were written since the last call. Returns their numbers.
  std::vector<size_t> taken() {
    std::vector<client::Run> runs;
    EXPECT_TRUE(tracker_->take(memory_, kPages * kPage, &runs));
    std::vector<size_t> pages;
    for (const client::Run& run : runs) {
      for (size_t at = run.at; at < run.at + run.bytes; at += kPage) pages.push_back(at / kPage);
    }
    return pages;
  }

  WriteTracker* tracker_ = nullptr;
  char* memory_ = nullptr;
};

TEST_F(WriteTrackerTest, TellsEachWrittenPageOnce) {
  EXPECT_TRUE(taken().empty());
  memory_[3 * kPage] = 1;
  memory_[4 * kPage + 5] = 1;
  memory_[63 * kPage] = 1;
  EXPECT_EQ(taken(), (std::vector<size_t>{3, 4, 63}));
  EXPECT_TRUE(taken().empty());
  memory_[4 * kPage] = 2;
  EXPECT_EQ(taken(), (std::vector<size_t>{4}));
}

TEST_F(WriteTrackerTest, ReadsAreNoWrites) {
  std::memset(memory_, 1, kPages * kPage);
  (void)taken();
  int sum = 0;
  for (size_t i = 0; i < kPages; ++i) sum += memory_[i * kPage];
  EXPECT_EQ(sum, static_cast<int>(kPages));
  EXPECT_TRUE(taken().empty());
}

TEST_F(WriteTrackerTest, SystemCallsWrite) {
  std::memset(memory_, 1, kPages * kPage);
  (void)taken();
  const UniqueFd zeros(open("/dev/zero", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(zeros);
  EXPECT_EQ(read(zeros.get(), memory_ + 10 * kPage, 2 * kPage), static_cast<ssize_t>(2 * kPage));
  EXPECT_EQ(memory_[10 * kPage], 0);
  EXPECT_EQ(taken(), (std::vector<size_t>{10, 11}));
}

TEST_F(WriteTrackerTest, ManyRunsAreAllTold) {
  constexpr size_t kMany = 4096;
  auto* many = static_cast<char*>(
      mmap(nullptr, kMany * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(many, MAP_FAILED);
  ASSERT_TRUE(tracker_->watch(many, kMany * kPage));
  for (size_t page = 0; page < kMany; page += 2) many[page * kPage] = 1;
  std::vector<client::Run> runs;
  ASSERT_TRUE(tracker_->take(many, kMany * kPage, &runs));
  EXPECT_EQ(runs.size(), kMany / 2);
  EXPECT_EQ(runs.back().at, (kMany - 2) * kPage);
  munmap(many, kMany * kPage);
}

}  // namespace
}  // namespace rcuda::client
