#include "client/hostmem/registered_pages.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/base/unique_fd.h"

namespace rcuda::client {
namespace {

// Pages of this test; runs of them are moved onto memfds.
class RegisteredPagesTest : public ::testing::Test {
 protected:
  RegisteredPagesTest() {
    first_ = reinterpret_cast<uintptr_t>(::mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE,
                                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  ~RegisteredPagesTest() override {
    EXPECT_TRUE(made_.empty());
    ::munmap(at(0), kPages * kPage);
  }

  void* at(size_t page) const { return reinterpret_cast<void*>(first_ + page * kPage); }
  bool use(size_t page, size_t pages) {
    return use_pages(
        first_ + page * kPage, pages * kPage,
        [this](PageRun* run) {
          if (run->first == refused_) return false;
          const UniqueFd backing(memfd_create("registered_pages_test", MFD_CLOEXEC));
          if (::ftruncate(backing.get(), static_cast<off_t>(run->bytes)) != 0) return false;
          struct stat file {};
          if (::fstat(backing.get(), &file) != 0) return false;
          run->inode = file.st_ino;
          void* pages_of_run = reinterpret_cast<void*>(run->first);
          if (::mmap(pages_of_run, run->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                     backing.get(), 0) != pages_of_run) {
            return false;
          }
          made_.insert(run->first);
          return true;
        },
        [this](const PageRun& run) { made_.erase(run.first); });
  }
  void leave(size_t page, size_t pages) {
    leave_pages(first_ + page * kPage, pages * kPage,
                [this](const PageRun& run) { made_.erase(run.first); });
  }
  size_t shared_pages() const {
    size_t bytes = 0;
    for (const MappedPart& part : mappings_in(first_, first_ + kPages * kPage)) {
      bytes += part.is_shared ? part.bytes() : 0;
    }
    return bytes / kPage;
  }
  size_t pieces(size_t page, size_t pages) const {
    return pieces_in_runs(first_ + page * kPage, pages * kPage).size();
  }

  static constexpr size_t kPages = 8;
  const size_t kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  uint64_t first_ = 0;
  uint64_t refused_ = 0;
  std::set<uint64_t> made_;
};

TEST_F(RegisteredPagesTest, NeighboursShareARunUntilTheLastHasLeft) {
  ASSERT_TRUE(use(0, 3));
  ASSERT_TRUE(use(2, 3));  // page 2 is already in use
  EXPECT_EQ(made_.size(), 2u);
  EXPECT_EQ(pieces(0, 3), 1u);
  EXPECT_EQ(pieces(2, 3), 2u);
  leave(0, 3);
  EXPECT_EQ(made_.size(), 2u);
  leave(2, 3);
  EXPECT_EQ(pieces(2, 3), 1u);
}

TEST_F(RegisteredPagesTest, FillsWhatIsMissingOnBothSidesAndInBetween) {
  ASSERT_TRUE(use(1, 1));
  ASSERT_TRUE(use(4, 1));
  ASSERT_TRUE(use(0, 6));
  EXPECT_EQ(made_.size(), 5u);
  const auto found = pieces_in_runs(first_ + 100, 6 * kPage - 200);
  ASSERT_EQ(found.size(), 5u);
  EXPECT_EQ(found[0], std::pair(first_ + 100, kPage - 100));
  EXPECT_EQ(found[4], std::pair(first_ + 5 * kPage, kPage - 100));
  leave(1, 1);
  leave(4, 1);
  EXPECT_EQ(made_.size(), 5u);
  leave(0, 6);
}

TEST_F(RegisteredPagesTest, WhatCannotBeMadeChangesNothing) {
  ASSERT_TRUE(use(2, 1));
  refused_ = first_ + 3 * kPage;
  EXPECT_FALSE(use(0, 5));  // though pages 0 and 1 could be moved
  EXPECT_EQ(made_.size(), 1u);
  leave(2, 1);
}

TEST_F(RegisteredPagesTest, PagesThatWereMappedAnewAreNotTheRuns) {
  ASSERT_TRUE(use(0, 3));
  ASSERT_TRUE(use(2, 1));
  leave(0, 3);
  ASSERT_EQ(
      ::mmap(at(0), kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
      at(0));
  EXPECT_FALSE(use(0, 1));
  EXPECT_TRUE(use(1, 1));
  leave(1, 1);
  leave(2, 1);
}

TEST_F(RegisteredPagesTest, PagesOfALeftRunAreOrdinaryAgain) {
  ASSERT_TRUE(use(1, 1));
  EXPECT_EQ(shared_pages(), 1u);
  EXPECT_TRUE(have_backing(first_ + kPage, kPage));
  leave(1, 1);
  EXPECT_EQ(shared_pages(), 0u);
}

TEST_F(RegisteredPagesTest, ARunThatWasNotMovedHasNoBacking) {
  const auto make = [](PageRun*) { return true; };
  const auto end = [](const PageRun&) {};
  ASSERT_TRUE(use_pages(first_ + kPage, kPage, make, end));
  EXPECT_FALSE(have_backing(first_ + kPage, 1));
  EXPECT_TRUE(have_backing(first_, kPage)) << "in no run";
  EXPECT_FALSE(have_backing(first_, kPage + 1));
  leave_pages(first_ + kPage, kPage, end);
}

// io_uring pins its fixed buffers: the kernel reads and writes these pages, so they must not move.
TEST_F(RegisteredPagesTest, PinnedPagesStayWhereTheyAre) {
  io_uring_params parameters{};
  UniqueFd ring(static_cast<int>(::syscall(__NR_io_uring_setup, 1, &parameters)));
  if (!ring) GTEST_SKIP() << "io_uring is not permitted here: " << std::strerror(errno);
  ASSERT_TRUE(use(0, 3));
  const iovec pinned{at(0), kPage};
  ASSERT_EQ(::syscall(__NR_io_uring_register, ring.get(), IORING_REGISTER_BUFFERS, &pinned, 1), 0);
  EXPECT_TRUE(any_page_pinned());
  leave(0, 3);
  EXPECT_TRUE(made_.empty()) << "workers have no access any more";
  EXPECT_EQ(shared_pages(), 3u);
  ASSERT_EQ(::syscall(__NR_io_uring_register, ring.get(), IORING_UNREGISTER_BUFFERS, nullptr, 0),
            0);
  // The pages move at the next use() or leave() of any pages.
  ASSERT_TRUE(use(5, 1));
  EXPECT_EQ(shared_pages(), 1u);
  leave(5, 1);
  EXPECT_EQ(shared_pages(), 0u);
}

}  // namespace
}  // namespace rcuda::client
