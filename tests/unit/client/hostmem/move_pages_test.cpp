#include "client/hostmem/move_pages.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/unique_fd.h"

namespace rcuda::client {
namespace {

const size_t kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));

class Pages {
 public:
  explicit Pages(size_t count, int protection = PROT_READ | PROT_WRITE)
      : bytes_(count * kPage),
        begin_(mmap(nullptr, bytes_, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~Pages() { munmap(begin_, bytes_); }
  uint64_t* words() const { return static_cast<uint64_t*>(begin_); }
  void* begin() const { return begin_; }
  size_t bytes() const { return bytes_; }
  std::vector<MappedPart> parts() const { return parts_of(0, bytes_ / kPage); }
  std::vector<MappedPart> parts_of(size_t page, size_t count) const {
    const uint64_t first = reinterpret_cast<uintptr_t>(begin_) + page * kPage;
    return mappings_in(first, first + count * kPage);
  }

 private:
  const size_t bytes_;
  void* const begin_;
};

bool move_off_all(const std::vector<MappedPart>& parts) {
  return std::all_of(parts.begin(), parts.end(),
                     [](const MappedPart& part) { return move_off(part, true); });
}

UniqueFd memfd(size_t bytes) {
  UniqueFd fd(memfd_create("move_pages_test", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

// Whether the kernel can hold back writes of this process (userfaultfd), also to pages of a memfd,
// which needs Linux 5.19.
bool writes_can_be_held() {
  const UniqueFd fd(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY)));
  uffdio_api api{UFFD_API, UFFD_FEATURE_WP_HUGETLBFS_SHMEM, 0};
  return fd && ioctl(fd.get(), UFFDIO_API, &api) == 0;
}

TEST(MovePages, KeepsTheContentsAndBecomesTheFilesMemory) {
  const Pages pages(3);
  for (size_t i = 0; i < pages.bytes() / sizeof(uint64_t); ++i) pages.words()[i] = i * i;
  const UniqueFd backing = memfd(pages.bytes());
  ASSERT_TRUE(move_onto(backing.get(), pages.parts()));
  for (size_t i = 0; i < pages.bytes() / sizeof(uint64_t); ++i) {
    ASSERT_EQ(pages.words()[i], i * i) << "word " << i;
  }
  pages.words()[5] = 4711;
  uint64_t seen = 0;
  ASSERT_EQ(pread(backing.get(), &seen, sizeof seen, 5 * sizeof seen), sizeof seen);
  EXPECT_EQ(seen, 4711u);
}

TEST(MovePages, PagesThatWereNeverTouchedAreZero) {
  const Pages pages(2);
  const UniqueFd backing = memfd(pages.bytes());
  ASSERT_TRUE(move_onto(backing.get(), pages.parts()));
  EXPECT_EQ(pages.words()[kPage / sizeof(uint64_t)], 0u);
}

TEST(MovePages, MemoryMovedOffAgainIsPrivateAndAnonymous) {
  const Pages pages(4);
  const size_t words = pages.bytes() / sizeof(uint64_t);
  const UniqueFd backing = memfd(pages.bytes());
  ASSERT_TRUE(move_onto(backing.get(), pages.parts()));
  for (size_t i = 0; i < words; ++i) pages.words()[i] = i + 1;
  // Its last three pages.
  uint64_t* const second = pages.words() + kPage / sizeof(uint64_t);
  ASSERT_TRUE(move_off_all(pages.parts_of(1, 3)));
  for (size_t i = 0; i < words; ++i) ASSERT_EQ(pages.words()[i], i + 1) << "word " << i;
  pages.words()[0] = second[0] = 4711;
  uint64_t seen[2] = {};
  ASSERT_EQ(pread(backing.get(), &seen[0], sizeof seen[0], 0), sizeof seen[0]);
  ASSERT_EQ(pread(backing.get(), &seen[1], sizeof seen[1], kPage), sizeof seen[1]);
  EXPECT_EQ(seen[0], 4711u) << "the first page was not to be moved";
  EXPECT_NE(seen[1], 4711u);
  // Discards a page, as allocators do with pages that must be zero when they are used next.
  ASSERT_EQ(madvise(second, kPage, MADV_DONTNEED), 0);
  EXPECT_EQ(second[0], 0u);
}

// While pages move, other threads increment words in them and touch pages for the first time. No
// increment may be lost.
TEST(MovePages, NoWriteOfAnotherThreadIsLost) {
  if (!writes_can_be_held()) GTEST_SKIP() << "this kernel does not hold writes for this process";
  constexpr size_t kThreads = 3, kPages = 500;
  constexpr int kRounds = 20;
  const size_t stride = kPage / sizeof(uint64_t);
  for (int round = 0; round < kRounds; ++round) {
    const Pages pages(kPages);
    std::atomic<bool> over = false;
    std::atomic<size_t> writing = 0;
    uint64_t counted[kThreads] = {};
    std::vector<std::thread> threads;
    for (size_t id = 0; id < kThreads; ++id) {
      threads.emplace_back([&, id] {
        for (size_t at = 0; !over.load(std::memory_order_relaxed); at = (at + 7) % kPages) {
          volatile uint64_t& mine = pages.words()[at * stride + id];
          mine = mine + 1;
          if (++counted[id] == 10) ++writing;
        }
      });
    }
    while (writing < kThreads) std::this_thread::yield();
    const UniqueFd backing = memfd(pages.bytes());
    EXPECT_TRUE(move_onto(backing.get(), pages.parts()));
    EXPECT_TRUE(move_off_all(pages.parts()));
    over = true;
    for (std::thread& thread : threads) thread.join();
    for (size_t id = 0; id < kThreads; ++id) {
      uint64_t sum = 0;
      for (size_t page = 0; page < kPages; ++page) sum += pages.words()[page * stride + id];
      ASSERT_EQ(sum, counted[id]) << "round " << round << ", thread " << id;
    }
  }
}

TEST(MovePages, MemoryThatWasMadeUnreadableSinceIsMovedOffToo) {
  const Pages pages(1);
  pages.words()[3] = 4711;
  ASSERT_TRUE(move_onto(memfd(pages.bytes()).get(), pages.parts()));
  ASSERT_EQ(mprotect(pages.begin(), pages.bytes(), PROT_NONE), 0);
  ASSERT_TRUE(move_off_all(pages.parts()));
  EXPECT_EQ(pages.parts()[0].protection, PROT_NONE);
  ASSERT_EQ(mprotect(pages.begin(), pages.bytes(), PROT_READ), 0);
  EXPECT_EQ(pages.words()[3], 4711u);
}

TEST(MovePages, KeepsTheProtectionOfEachPart) {
  const Pages pages(5);
  for (size_t i = 0; i < 5; ++i) pages.words()[i * kPage / sizeof(uint64_t)] = i + 1;
  ASSERT_EQ(mprotect(pages.begin(), kPage, PROT_READ), 0);
  auto* const second = static_cast<std::byte*>(pages.begin()) + kPage;
  ASSERT_EQ(mprotect(second + kPage, 2 * kPage, PROT_READ | PROT_EXEC), 0);
  const auto protections = [&] {
    std::vector<int> found;
    for (const MappedPart& part : pages.parts()) found.push_back(part.protection);
    return found;
  };
  constexpr int kBoth = PROT_READ | PROT_WRITE;
  const std::vector<int> before = {PROT_READ, kBoth, PROT_READ | PROT_EXEC, kBoth};
  ASSERT_EQ(protections(), before);
  ASSERT_TRUE(move_onto(memfd(pages.bytes()).get(), pages.parts()));
  EXPECT_EQ(protections(), before);
  ASSERT_TRUE(move_off_all(pages.parts()));
  EXPECT_EQ(protections(), before);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(pages.words()[i * kPage / sizeof(uint64_t)], i + 1);
}

// Pages move piece by piece, so at any time at most one piece exists twice.
TEST(MovePages, PiecesThatHaveMovedAreFree) {
  const Pages pages(2 * kMovedBytes / kPage + 1);
  for (size_t i = 0; i < pages.bytes() / sizeof(uint64_t); ++i) pages.words()[i] = i;
  const UniqueFd backing = memfd(pages.bytes());
  ASSERT_TRUE(move_onto(backing.get(), pages.parts()));
  ASSERT_EQ(pages.parts().size(), 1u) << "pieces are one mapping";
  const auto in_file = [&] {
    struct stat file {};
    EXPECT_EQ(fstat(backing.get(), &file), 0);
    return static_cast<size_t>(file.st_blocks) * 512;
  };
  EXPECT_EQ(in_file(), pages.bytes());
  ASSERT_TRUE(move_off(pages.parts_of(0, 1)[0], false));
  EXPECT_EQ(in_file(), pages.bytes()) << "a child may use it";
  ASSERT_TRUE(move_off_all(pages.parts_of(1, pages.bytes() / kPage - 1)));
  EXPECT_EQ(in_file(), kPage);
  for (size_t i = 0; i < pages.bytes() / sizeof(uint64_t); ++i) ASSERT_EQ(pages.words()[i], i);
}

TEST(MovePages, MemoryThatCannotBeReadStaysAsItIs) {
  const Pages pages(1, PROT_NONE);
  const UniqueFd backing = memfd(pages.bytes());
  EXPECT_FALSE(move_onto(backing.get(), pages.parts()));
  ASSERT_EQ(mprotect(pages.begin(), pages.bytes(), PROT_READ | PROT_WRITE), 0);
  pages.words()[0] = 1;
  EXPECT_EQ(pages.words()[0], 1u);
}

}  // namespace
}  // namespace rcuda::client
