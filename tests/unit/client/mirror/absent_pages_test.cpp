// Pages that are fetched when they are first accessed.
#include "client/mirror/absent_pages.h"

#include <atomic>
#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/session/reply.h"

namespace rcuda::client {
namespace {

constexpr size_t kPage = AbsentPages::kPageBytes;
constexpr size_t kBytes = 4 << 20;
constexpr int kNever = 1 << 30;  // failures before the kernel has memory again

// A kernel that runs out of memory.
class ShortOfMemory : public WriteTracker {
 public:
  ShortOfMemory() : WriteTracker(*WriteTracker::get()) {}

  size_t put_pages(void* address, const void* from, size_t bytes, bool written) override {
    if (failures-- <= 0) return WriteTracker::put_pages(address, from, bytes, written);
    const size_t half = bytes / kPage / 2 * kPage;
    return half == 0 ? 0 : WriteTracker::put_pages(address, from, half, written);
  }
  bool move_out(void* address, void* to, size_t bytes) override {
    return moves && WriteTracker::move_out(address, to, bytes);
  }

  std::atomic<int> failures{0};
  std::atomic<bool> moves{true};
};

class AbsentPagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!AbsentPages::possible()) {
      GTEST_SKIP() << "this process may not serve faults of system calls";
    }
    void* memory =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    memory_ = static_cast<std::byte*>(memory);
    for (size_t i = 0; i < kBytes; ++i) worker_[i] = static_cast<std::byte>(i / kPage + i);
    tracker_ = std::make_unique<ShortOfMemory>();
    ASSERT_TRUE(tracker_->watch(memory_, kBytes));
    absent_ = AbsentPages::make(*tracker_, memory_, kBytes, known_.data(),
                                [this](std::byte* to, const client::Run& run) {
                                  fetched_ += run.bytes;
                                  ++fetches_;
                                  if (lost_) return kSessionLost;
                                  if (failures_-- > 0) return CUDA_ERROR_UNKNOWN;
                                  std::lock_guard lock(worker_mutex_);
                                  std::memcpy(to, worker_.data() + run.at, run.bytes);
                                  return CUDA_SUCCESS;
                                });
    ASSERT_TRUE(absent_);
  }
  void TearDown() override {
    if (absent_) absent_->stop();
    if (memory_) munmap(memory_, kBytes);
  }

  // Both sides have the same bytes.
  void drop(const client::Run& run) {
    std::memcpy(known_.data() + run.at, memory_ + run.at, run.bytes);
    std::vector<client::Run> stay;
    absent_->drop(run, &stay);
    ASSERT_TRUE(stay.empty());
  }
  // Sends the pages that the application has changed.
  void push() {
    std::vector<client::Run> runs;
    ASSERT_TRUE(tracker_->take(memory_, kBytes, &runs));
    std::vector<std::byte> page(kPage);
    for (const client::Run& run : runs) {
      for (size_t at = run.at; at < run.at + run.bytes; at += kPage) {
        if (absent_->is_absent(at)) continue;
        std::memcpy(page.data(), memory_ + at, kPage);
        std::lock_guard lock(worker_mutex_);
        std::memcpy(worker_.data() + at, page.data(), kPage);
        std::memcpy(known_.data() + at, page.data(), kPage);
      }
    }
  }

  std::unique_ptr<ShortOfMemory> tracker_;
  std::mutex worker_mutex_;
  std::vector<std::byte> worker_ = std::vector<std::byte>(kBytes);
  std::vector<std::byte> known_ = std::vector<std::byte>(kBytes);
  std::byte* memory_ = nullptr;
  std::shared_ptr<AbsentPages> absent_;
  std::atomic<size_t> fetched_{0}, fetches_{0};
  std::atomic<int> failures_{0};
  std::atomic<bool> lost_{false};
};

// Pages that nobody has accessed may have any bytes in the worker.
TEST_F(AbsentPagesTest, EmptyPagesCanBeAbsent) {
  ASSERT_EQ(madvise(memory_, kBytes, MADV_NOHUGEPAGE), 0);
  memory_[3 * kPage] = std::byte{1};
  const std::byte read = static_cast<const volatile std::byte*>(memory_)[9 * kPage];
  EXPECT_EQ(read, std::byte{0});
  const auto ends = [&](bool with_empty) {
    std::vector<client::Run> runs;
    EXPECT_TRUE(absent_->present(with_empty, &runs));
    std::vector<size_t> all;
    for (const client::Run& run : runs) {
      all.push_back(run.at / kPage);
      all.push_back((run.at + run.bytes) / kPage);
    }
    return all;
  };
  using Ends = std::vector<size_t>;
  EXPECT_EQ(ends(true), (Ends{0, kBytes / kPage}));
  EXPECT_EQ(absent_->count(), 0u);
  EXPECT_EQ(ends(false), (Ends{3, 4, 9, 10}));
  EXPECT_EQ(absent_->count(), kBytes / kPage - 2);
  EXPECT_EQ(memory_[3 * kPage], std::byte{1});
  EXPECT_EQ(memory_[9 * kPage], std::byte{0});
  EXPECT_EQ(memory_[4 * kPage], worker_[4 * kPage]);
  EXPECT_EQ(memory_[kBytes - 1], worker_[kBytes - 1]);
  EXPECT_GT(ends(false).back(), 10u);
}

TEST_F(AbsentPagesTest, OneWordFetchesLittle) {
  drop({0, kBytes});
  EXPECT_TRUE(absent_->is_absent(100 * kPage));
  EXPECT_EQ(fetched_, 0u);
  EXPECT_EQ(memory_[100 * kPage + 7], worker_[100 * kPage + 7]);
  EXPECT_FALSE(absent_->is_absent(100 * kPage));
  EXPECT_TRUE(absent_->is_absent(99 * kPage));
  EXPECT_EQ(fetches_, 1u);
  EXPECT_LE(fetched_, size_t{64} << 10);
  EXPECT_EQ(known_[100 * kPage + 7], worker_[100 * kPage + 7]);
}

TEST_F(AbsentPagesTest, ReadingOnFetchesLongPieces) {
  drop({0, kBytes});
  EXPECT_EQ(std::memcmp(memory_, worker_.data(), kBytes), 0);
  EXPECT_EQ(fetched_, kBytes);
  EXPECT_LE(fetches_, 8u);
}

TEST_F(AbsentPagesTest, OtherPagesStay) {
  std::memset(memory_, 0x55, kBytes);
  drop({8 * kPage, 2 * kPage});
  EXPECT_EQ(memory_[7 * kPage], std::byte{0x55});
  EXPECT_EQ(memory_[10 * kPage], std::byte{0x55});
  EXPECT_EQ(fetches_, 0u);
  EXPECT_EQ(memory_[9 * kPage], worker_[9 * kPage]);
  EXPECT_EQ(fetched_, kPage);  // from the access on
  EXPECT_EQ(memory_[8 * kPage], worker_[8 * kPage]);
  EXPECT_EQ(fetched_, 2 * kPage);
}

TEST_F(AbsentPagesTest, SystemCallsFetchToo) {
  drop({0, kBytes});
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], memory_ + 5 * kPage, kPage), static_cast<ssize_t>(kPage));
  // Half of a page comes from the pipe, the other from the worker.
  ASSERT_EQ(read(ends[0], memory_ + 600 * kPage, kPage / 2), static_cast<ssize_t>(kPage / 2));
  EXPECT_EQ(std::memcmp(memory_ + 600 * kPage, worker_.data() + 5 * kPage, kPage / 2), 0);
  EXPECT_EQ(std::memcmp(memory_ + 600 * kPage + kPage / 2, worker_.data() + 600 * kPage + kPage / 2,
                        kPage / 2),
            0);
  close(ends[0]);
  close(ends[1]);
}

TEST_F(AbsentPagesTest, FetchedPagesCountAsUnwritten) {
  drop({0, kBytes});
  EXPECT_EQ(memory_[0], worker_[0]);
  memory_[3 * kPage] = std::byte{1};
  std::vector<client::Run> runs;
  ASSERT_TRUE(WriteTracker::get()->take(memory_, kBytes, &runs));
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].at, 3 * kPage);
  EXPECT_EQ(runs[0].bytes, kPage);
}

TEST_F(AbsentPagesTest, BytesThatCameAnotherWayAreNotFetched) {
  drop({0, kBytes});
  absent_->install({16 * kPage, 4 * kPage}, worker_.data() + 16 * kPage);
  EXPECT_EQ(std::memcmp(memory_ + 16 * kPage, worker_.data() + 16 * kPage, 4 * kPage), 0);
  EXPECT_EQ(fetches_, 0u);
}

TEST_F(AbsentPagesTest, ThreadsThatAccessAtOnceAllGetTheBytes) {
  drop({0, kBytes});
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t page = t; page < kBytes / kPage; page += 3) {
        if (memory_[page * kPage + 1] != worker_[page * kPage + 1]) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(fetched_, kBytes);
}

TEST_F(AbsentPagesTest, WhatTheApplicationChangedStays) {
  std::memset(memory_, 0x11, kBytes);
  push();
  memory_[7 * kPage + 3] = std::byte{0x22};
  std::vector<client::Run> stay, written;
  absent_->drop({0, kBytes}, &stay);
  ASSERT_EQ(stay.size(), 1u);
  EXPECT_EQ(stay[0].at, 7 * kPage);
  EXPECT_EQ(stay[0].bytes, kPage);
  EXPECT_EQ(absent_->count(), kBytes / kPage - 1);
  EXPECT_EQ(memory_[7 * kPage + 3], std::byte{0x22});
  EXPECT_EQ(memory_[7 * kPage + 4], std::byte{0x11});
  EXPECT_EQ(fetches_, 0u);
  ASSERT_TRUE(tracker_->take(memory_, kBytes, &written));  // and is still to be sent
  ASSERT_EQ(written.size(), 1u);
  EXPECT_EQ(written[0].at, 7 * kPage);
}

TEST_F(AbsentPagesTest, PagesThatCannotMoveStay) {
  tracker_->moves = false;
  std::memset(memory_, 0x11, kBytes);
  std::vector<client::Run> stay;
  absent_->drop({0, kBytes}, &stay);
  ASSERT_EQ(stay.size(), 1u);
  EXPECT_EQ(stay[0].bytes, kBytes);
  EXPECT_EQ(absent_->count(), 0u);
  EXPECT_EQ(memory_[kBytes - 1], std::byte{0x11});
}

// While pages come and go, each thread finds what it wrote last.
TEST_F(AbsentPagesTest, NoWriteIsLostWhenPagesAreDropped) {
  constexpr size_t kThreads = 3, kRounds = 3000, kUsed = 8;
  std::memset(memory_, 0, kBytes);
  push();
  std::atomic<bool> over{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<uint32_t> last(kUsed);
      uint32_t random = static_cast<uint32_t>(t) + 1;
      for (uint32_t value = 1; !over; ++value) {
        random = random * 1664525 + 1013904223;
        const size_t page = random >> 16 & (kUsed - 1);
        auto& word = *reinterpret_cast<std::atomic<uint32_t>*>(memory_ + page * kPage + 64 * t);
        if (word.load(std::memory_order_relaxed) != last[page]) ++wrong;
        word.store(value, std::memory_order_relaxed);
        last[page] = value;
      }
      for (size_t page = 0; page < kUsed; ++page) {
        uint32_t found;
        std::memcpy(&found, memory_ + page * kPage + 64 * t, sizeof found);
        if (found != last[page]) ++wrong;
      }
    });
  }
  for (size_t round = 0; round < kRounds; ++round) {
    if (round % 2 == 0) push();
    std::vector<client::Run> stay;
    absent_->drop({0, kUsed * kPage}, &stay);
    if (round % 8 == 0) std::this_thread::yield();
  }
  over = true;
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(fetches_, 0u);
}

TEST_F(AbsentPagesTest, AFailedFetchIsTriedAgain) {
  failures_ = 3;
  drop({0, kBytes});
  EXPECT_EQ(memory_[5 * kPage + 5], worker_[5 * kPage + 5]);
  EXPECT_EQ(fetches_, 4u);
}

TEST_F(AbsentPagesTest, APageThatTheKernelDoesNotTakeIsTriedAgain) {
  drop({0, kBytes});
  tracker_->failures = 7;
  EXPECT_EQ(std::memcmp(memory_, worker_.data(), 1 << 20), 0);
  EXPECT_LT(tracker_->failures, 0);
}

TEST_F(AbsentPagesTest, BytesThatTheKernelDoesNotTakeAreFetchedLater) {
  drop({0, kBytes});
  tracker_->failures = 1;
  absent_->install({16 * kPage, 4 * kPage}, worker_.data() + 16 * kPage);
  EXPECT_FALSE(absent_->is_absent(17 * kPage));
  EXPECT_TRUE(absent_->is_absent(18 * kPage));
  EXPECT_TRUE(absent_->is_absent(19 * kPage));
  EXPECT_EQ(absent_->count(), kBytes / kPage - 2);
  EXPECT_EQ(std::memcmp(memory_ + 16 * kPage, worker_.data() + 16 * kPage, 4 * kPage), 0);
}

TEST_F(AbsentPagesTest, WhatTheApplicationChangedWaitsForTheKernelsMemory) {
  std::memset(memory_, 0, kBytes);
  push();
  std::memset(memory_, 0x11, 8 * kPage);
  tracker_->failures = 3;
  std::vector<client::Run> stay;
  absent_->drop({0, 8 * kPage}, &stay);
  ASSERT_EQ(stay.size(), 1u);
  EXPECT_EQ(stay[0].bytes, 8 * kPage);
  EXPECT_TRUE(absent_->put_back());
  EXPECT_LT(tracker_->failures, 0);
  EXPECT_EQ(absent_->count(), 0u);
  for (size_t i = 0; i < 8 * kPage; ++i) ASSERT_EQ(memory_[i], std::byte{0x11});
  std::vector<client::Run> written;
  ASSERT_TRUE(tracker_->take(memory_, kBytes, &written));
  ASSERT_EQ(written.size(), 1u);
  EXPECT_EQ(written[0].bytes, 8 * kPage);
}

// Neither the worker's bytes nor another drop takes its place meanwhile.
TEST_F(AbsentPagesTest, WhatTheApplicationChangedIsServedOnceThereIsMemory) {
  std::memset(memory_, 0x11, kBytes);
  tracker_->failures = kNever;
  std::vector<client::Run> stay;
  absent_->drop({0, kBytes}, &stay);
  ASSERT_EQ(bytes_of(stay), kBytes);
  EXPECT_GT(absent_->count(), 8u);
  absent_->install({0, kBytes}, worker_.data());
  absent_->drop({0, kBytes}, &stay);
  tracker_->failures = 5;
  for (size_t i = 0; i < kBytes; ++i) ASSERT_EQ(memory_[i], std::byte{0x11});
  EXPECT_EQ(absent_->count(), 0u);
  EXPECT_EQ(fetches_, 0u);
}

// Other threads go on with other pages. The memory may come back (in this test).
TEST_F(AbsentPagesTest, WithoutMemoryAnAccessEndsInAnError) {
  std::memset(memory_, 0x11, kBytes);
  push();
  std::memset(memory_ + 8 * kPage, 0x22, 8 * kPage);
  tracker_->failures = kNever;
  std::vector<client::Run> stay;
  absent_->drop({0, kBytes}, &stay);
  EXPECT_EQ(bytes_of(stay), 8 * kPage);
  std::atomic<bool> is_back{true};
  std::thread waits([&] { is_back = absent_->put_back(); });
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(write(ends[1], memory_ + 15 * kPage, 1), -1);
  EXPECT_EQ(errno, EFAULT);
  close(ends[0]);
  close(ends[1]);
  std::vector<client::Run> present;
  EXPECT_TRUE(absent_->present(true, &present));
  waits.join();
  EXPECT_FALSE(is_back);
  tracker_->failures = 0;
  EXPECT_TRUE(absent_->put_back());
  for (size_t i = 8 * kPage; i < 16 * kPage; ++i) ASSERT_EQ(memory_[i], std::byte{0x22});
  EXPECT_EQ(memory_[16 * kPage], worker_[16 * kPage]);
}

// It is not zero, and nothing of it is sent. The worker may come back (in this test).
sigjmp_buf after_access;

TEST_F(AbsentPagesTest, WithoutTheWorkerAnAccessEndsInASignal) {
  lost_ = true;
  drop({0, kBytes});
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(write(ends[1], memory_ + 3 * kPage, 1), -1);
  EXPECT_EQ(errno, EFAULT);
  close(ends[0]);
  close(ends[1]);
  struct sigaction jumps {
  }, before{};
  jumps.sa_handler = [](int) { siglongjmp(after_access, 1); };
  ASSERT_EQ(sigaction(SIGBUS, &jumps, &before), 0);
  volatile bool read = false;
  if (sigsetjmp(after_access, 1) == 0) {
    [[maybe_unused]] volatile std::byte byte = memory_[5 * kPage];
    read = true;
  }
  ASSERT_EQ(sigaction(SIGBUS, &before, nullptr), 0);
  EXPECT_FALSE(read);
  EXPECT_TRUE(absent_->is_absent(3 * kPage));
  EXPECT_TRUE(absent_->is_absent(5 * kPage));
  lost_ = false;
  absent_->install({0, 16 * kPage}, worker_.data());
  EXPECT_EQ(std::memcmp(memory_, worker_.data(), kBytes), 0);
}

}  // namespace
}  // namespace rcuda::client
