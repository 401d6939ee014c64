#include "common/base/mappings.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "common/base/unique_fd.h"

namespace rcuda {
namespace {

const size_t kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));

// Six pages: readable, writable, of a memfd, inaccessible, unmapped, writable.
class MappingsTest : public ::testing::Test {
 protected:
  MappingsTest() : file_(memfd_create("mappings_test", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(file_.get(), static_cast<off_t>(kPage)), 0);
    // A separate page on each side, so that no other mapping is adjacent.
    void* all = mmap(nullptr, 8 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    first_ = reinterpret_cast<uintptr_t>(all) + kPage;
    EXPECT_EQ(mprotect(at(0), 6 * kPage, PROT_READ | PROT_WRITE), 0);
    EXPECT_EQ(mprotect(at(0), kPage, PROT_READ), 0);
    EXPECT_EQ(mmap(at(2), kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_.get(), 0),
              at(2));
    EXPECT_EQ(mprotect(at(3), kPage, PROT_NONE), 0);
    munmap(at(4), kPage);
  }
  ~MappingsTest() override { munmap(reinterpret_cast<void*>(first_ - kPage), 8 * kPage); }

  void* at(size_t page) const { return reinterpret_cast<void*>(first_ + page * kPage); }

  void expect_parts(const std::vector<MappedPart>& parts) const {
    struct stat file {};
    EXPECT_EQ(fstat(file_.get(), &file), 0);
    ASSERT_EQ(parts.size(), 5u);
    constexpr int kBoth = PROT_READ | PROT_WRITE;
    const int protections[] = {PROT_READ, kBoth, kBoth, PROT_NONE, kBoth};
    const size_t pages[] = {0, 1, 2, 3, 5};
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(parts[i].begin, first_ + pages[i] * kPage) << i;
      EXPECT_EQ(parts[i].bytes(), kPage) << i;
      EXPECT_EQ(parts[i].protection, protections[i]) << i;
      EXPECT_EQ(parts[i].is_shared, i == 2) << i;
      EXPECT_EQ(parts[i].inode, i == 2 ? file.st_ino : 0) << i;
    }
  }

  const UniqueFd file_;
  uint64_t first_ = 0;
};

Pinning pinning(uint64_t begin, uint64_t end, bool writes) {
  return pinning_of(mappings_in(begin, end), begin, end, writes);
}

TEST_F(MappingsTest, AreFoundWithTheirProtections) {
  expect_parts(mappings_in(first_, first_ + 6 * kPage));
}

TEST_F(MappingsTest, PartsAreTakenOfAList) {
  const auto parts = mappings_in(first_, first_ + 2 * kPage);
  ASSERT_EQ(parts.size(), 2u);
  const auto within = parts_in(parts, first_ + kPage + 8, first_ + 6 * kPage);
  ASSERT_EQ(within.size(), 1u);
  EXPECT_EQ(within[0].begin, first_ + kPage + 8);
  EXPECT_EQ(within[0].end, first_ + 2 * kPage);
}

TEST_F(MappingsTest, LinesHaveTheirPaths) {
  size_t files = 0, stacks = 0, anonymous = 0;
  ASSERT_TRUE(each_mapping([&](const MappedPart& part, const std::string& path) {
    files += path == "/memfd:mappings_test (deleted)";
    stacks += path == "[stack]";
    if (part.begin == first_ && part.bytes() == kPage) anonymous += path.empty();
    return true;
  }));
  EXPECT_EQ(files, 1u);
  EXPECT_EQ(stacks, 1u);
  EXPECT_EQ(anonymous, 1u);
}

TEST_F(MappingsTest, OlderKernelsListThem) {
  expect_parts(listed_mappings_in(first_, first_ + 6 * kPage));
  // More lines than one read of the file returns.
  std::vector<void*> others;
  for (int i = 0; i < 3000; ++i) {
    others.push_back(mmap(nullptr, kPage, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  munmap(at(4), kPage);  // one of the new mappings may be there
  expect_parts(listed_mappings_in(first_, first_ + 6 * kPage));
  EXPECT_GE(listed_mappings_in(0, UINT64_MAX).size(), 3000u);
  for (void* other : others) munmap(other, kPage);
}

TEST_F(MappingsTest, OnlyTheRangeCounts) {
  const auto parts = mappings_in(first_ + 10, first_ + kPage + 20);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].begin, first_ + 10);
  EXPECT_EQ(parts[1].end, first_ + kPage + 20);
  EXPECT_TRUE(mappings_in(first_ + 4 * kPage, first_ + 5 * kPage).empty());
}

TEST_F(MappingsTest, WithoutProcMappedMemoryMayBeShared) {
  const auto parts = unlisted_mappings_in(first_ + 10, first_ + 2 * kPage - 10);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_TRUE(parts[0].is_shared);
  EXPECT_TRUE(unlisted_mappings_in(first_, first_ + 5 * kPage).empty());
}

TEST_F(MappingsTest, CoverARangeWithoutGaps) {
  const auto parts = mappings_in(first_, first_ + 6 * kPage);
  EXPECT_TRUE(cover(parts, first_, first_ + 4 * kPage));
  EXPECT_FALSE(cover(parts, first_, first_ + 5 * kPage));
  EXPECT_FALSE(cover(parts, first_, first_ + 6 * kPage));
  EXPECT_TRUE(cover(parts, first_ + 5 * kPage, first_ + 6 * kPage));
  EXPECT_FALSE(cover({}, first_, first_ + 1));
}

TEST_F(MappingsTest, OnlyAccessibleMemoryCanBePinned) {
  const auto pages = [this](size_t first, size_t end, bool writes) {
    return pinning(first_ + first * kPage, first_ + end * kPage, writes);
  };
  EXPECT_EQ(pages(0, 3, true), Pinning::kInaccessible);
  EXPECT_EQ(pages(0, 3, false), Pinning::kPossible);
  EXPECT_EQ(pages(1, 3, true), Pinning::kPossible) << "a memfd has no file system to write it to";
  EXPECT_EQ(pages(2, 4, false), Pinning::kInaccessible);
  EXPECT_EQ(pages(2, 5, true), Pinning::kUnmapped);
}

TEST(Pinning, WritableSharedPagesOfAFileOnADiskAreNotPinned) {
  char path[] = "/var/tmp/mappings_testXXXXXX";
  const UniqueFd file(mkstemp(path));
  ASSERT_TRUE(file);
  unlink(path);
  ASSERT_EQ(ftruncate(file.get(), static_cast<off_t>(kPage)), 0);
  struct statfs system {};
  ASSERT_EQ(fstatfs(file.get(), &system), 0);
  utsname kernel{};
  ASSERT_EQ(uname(&kernel), 0);
  int major = 0, minor = 0;
  ASSERT_EQ(std::sscanf(kernel.release, "%d.%d", &major, &minor), 2);
  // Not on other file systems: some keep files in memory, and for some stat() returns another
  // device number than the list of mappings has.
  const bool known = (major > 6 || (major == 6 && minor >= 11)) &&
                     (system.f_type == EXT4_SUPER_MAGIC || system.f_type == XFS_SUPER_MAGIC);
  const auto pinned = [&](int sharing, bool writes) {
    void* memory = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, sharing, file.get(), 0);
    const auto begin = reinterpret_cast<uintptr_t>(memory);
    const Pinning found = pinning(begin, begin + kPage, writes);
    munmap(memory, kPage);
    return found;
  };
  EXPECT_EQ(pinned(MAP_SHARED, true), known ? Pinning::kWrittenBack : Pinning::kPossible);
  EXPECT_EQ(pinned(MAP_SHARED, false), Pinning::kPossible);
  EXPECT_EQ(pinned(MAP_PRIVATE, true), Pinning::kPossible);
}

TEST(Pinning, IsInTheStatusOfTheProcess) {
  EXPECT_TRUE(says_pinned("Name:\tx\nVmLck:\t       0 kB\nVmPin:\t    1024 kB\nVmHWM:\t 1 kB\n"));
  EXPECT_FALSE(says_pinned("Name:\tx\nVmLck:\t      64 kB\nVmPin:\t       0 kB\nVmHWM:\t 1 kB\n"));
  EXPECT_FALSE(says_pinned("Name:\tVmPin: 7\n"));
  EXPECT_FALSE(says_pinned(""));
  std::ifstream file("/proc/self/status");
  const std::string status{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(any_page_pinned(), says_pinned(status.c_str()));
}

}  // namespace
}  // namespace rcuda
