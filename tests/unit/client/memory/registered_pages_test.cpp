#include "client/memory/registered_pages.h"

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
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
  EXPECT_FALSE(use(0, 5));  // pages 0 and 1 could be moved
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

TEST_F(RegisteredPagesTest, KnowsHowMemoryIsMapped) {
  EXPECT_EQ(mapping_of(first_, 3 * kPage), PageMapping::kPrivate);
  ASSERT_TRUE(use(1, 1));
  EXPECT_EQ(mapping_of(first_, 3 * kPage), PageMapping::kShared);
  leave(1, 1);
  EXPECT_EQ(mapping_of(first_, 3 * kPage), PageMapping::kPrivate);  // again
  ASSERT_EQ(
      ::mmap(at(2), kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
      at(2));
  EXPECT_EQ(mapping_of(first_, 3 * kPage), PageMapping::kShared);
  EXPECT_EQ(mapping_of(first_, 2 * kPage), PageMapping::kPrivate);
  ::munmap(at(1), kPage);
  EXPECT_EQ(mapping_of(first_, 3 * kPage), PageMapping::kNone);
  // Without /proc, whatever is mapped may be shared.
  EXPECT_EQ(unlisted_mapping_of(first_, kPage), PageMapping::kShared);
  EXPECT_EQ(unlisted_mapping_of(first_, 3 * kPage), PageMapping::kNone);
}

}  // namespace
}  // namespace rcuda::client
