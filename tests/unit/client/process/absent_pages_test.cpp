// Pages that are fetched when they are first accessed.
#include "client/process/absent_pages.h"

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

namespace rcuda::client {
namespace {

constexpr size_t kPage = AbsentPages::kPageBytes;
constexpr size_t kBytes = 4 << 20;

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
    WriteTracker& tracker = *WriteTracker::get();
    ASSERT_TRUE(tracker.watch(memory_, kBytes));
    absent_ = AbsentPages::make(tracker, memory_, kBytes, known_.data(),
                                [this](std::byte* to, const client::Run& run) {
                                  fetched_ += run.bytes;
                                  ++fetches_;
                                  if (fails_) return CUDA_ERROR_UNKNOWN;
                                  std::memcpy(to, worker_.data() + run.at, run.bytes);
                                  return CUDA_SUCCESS;
                                });
    ASSERT_TRUE(absent_);
  }
  void TearDown() override {
    if (absent_) absent_->stop();
    if (memory_) munmap(memory_, kBytes);
  }

  std::vector<std::byte> worker_ = std::vector<std::byte>(kBytes);
  std::vector<std::byte> known_ = std::vector<std::byte>(kBytes);
  std::byte* memory_ = nullptr;
  std::shared_ptr<AbsentPages> absent_;
  std::atomic<size_t> fetched_{0}, fetches_{0};
  std::atomic<bool> fails_{false};
};

TEST_F(AbsentPagesTest, OneWordFetchesLittle) {
  ASSERT_TRUE(absent_->drop({0, kBytes}));
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
  ASSERT_TRUE(absent_->drop({0, kBytes}));
  EXPECT_EQ(std::memcmp(memory_, worker_.data(), kBytes), 0);
  EXPECT_EQ(fetched_, kBytes);
  EXPECT_LE(fetches_, 8u);
}

TEST_F(AbsentPagesTest, OtherPagesStay) {
  std::memset(memory_, 0x55, kBytes);
  ASSERT_TRUE(absent_->drop({8 * kPage, 2 * kPage}));
  EXPECT_EQ(memory_[7 * kPage], std::byte{0x55});
  EXPECT_EQ(memory_[10 * kPage], std::byte{0x55});
  EXPECT_EQ(fetches_, 0u);
  EXPECT_EQ(memory_[9 * kPage], worker_[9 * kPage]);
  EXPECT_EQ(fetched_, kPage);  // from the access on
  EXPECT_EQ(memory_[8 * kPage], worker_[8 * kPage]);
  EXPECT_EQ(fetched_, 2 * kPage);
}

TEST_F(AbsentPagesTest, SystemCallsFetchToo) {
  ASSERT_TRUE(absent_->drop({0, kBytes}));
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
  ASSERT_TRUE(absent_->drop({0, kBytes}));
  EXPECT_EQ(memory_[0], worker_[0]);
  memory_[3 * kPage] = std::byte{1};
  std::vector<client::Run> runs;
  ASSERT_TRUE(WriteTracker::get()->take(memory_, kBytes, &runs));
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].at, 3 * kPage);
  EXPECT_EQ(runs[0].bytes, kPage);
}

TEST_F(AbsentPagesTest, BytesThatCameAnotherWayAreNotFetched) {
  ASSERT_TRUE(absent_->drop({0, kBytes}));
  absent_->install({16 * kPage, 4 * kPage}, worker_.data() + 16 * kPage);
  EXPECT_EQ(std::memcmp(memory_ + 16 * kPage, worker_.data() + 16 * kPage, 4 * kPage), 0);
  EXPECT_EQ(fetches_, 0u);
}

TEST_F(AbsentPagesTest, ThreadsThatAccessAtOnceAllGetTheBytes) {
  ASSERT_TRUE(absent_->drop({0, kBytes}));
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

TEST_F(AbsentPagesTest, AFailedFetchEndsTheWait) {
  fails_ = true;
  ASSERT_TRUE(absent_->drop({0, kBytes}));
  EXPECT_EQ(memory_[5], std::byte{0});
}

}  // namespace
}  // namespace rcuda::client
