// Completion words that several threads signal at once, and the error word.
#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "server/executor/answers/answers.h"
#include "tests/support/link_pair.h"

namespace rcuda::server {
namespace {

using Window = wire::ClientWindow;
constexpr uint32_t kWord = 7;

class CompletionWordsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    transport::LinkOptions client, server;
    client.window_bytes = Window::kBytes;
    server.window_bytes = wire::WorkerWindow::kBytes;
    auto made = test::make_link_pair(test::medium_named("shm"), client, server);
    ASSERT_TRUE(made) << made.status().message();
    links_ = std::move(made).value();
    words_ = std::make_unique<Answers>(*links_.server);
  }
  uint64_t seen(uint64_t offset = Window::kCompletionWords + 8ull * kWord) {
    auto* word = links_.client->window().data() + offset;
    return std::atomic_ref(*reinterpret_cast<uint64_t*>(word)).load(std::memory_order_acquire);
  }
  uint64_t sequence() { return wire::CompletionWord::sequence(seen()); }

  test::LinkPair links_;
  std::unique_ptr<Answers> words_;
};

TEST_F(CompletionWordsTest, ALateSignalIsDropped) {
  words_->signal({kWord, 5}, CUDA_ERROR_LAUNCH_FAILED, transport::Wake::kYes);
  words_->signal({kWord, 4}, CUDA_SUCCESS, transport::Wake::kYes);
  words_->signal({kWord, 0}, CUDA_SUCCESS, transport::Wake::kYes);
  EXPECT_EQ(seen(), wire::CompletionWord::make(5, CUDA_ERROR_LAUNCH_FAILED));
}

TEST_F(CompletionWordsTest, AnErrorThatIsWithdrawnUncoversTheOneBefore) {
  const uint64_t first = words_->latch(CUDA_ERROR_INVALID_VALUE);
  const uint64_t second = words_->latch(CUDA_ERROR_UNKNOWN);
  const uint64_t third = words_->latch(CUDA_ERROR_UNKNOWN);
  words_->withdraw(second);
  EXPECT_EQ(seen(Window::kErrorWord), wire::CompletionWord::make(third, CUDA_ERROR_UNKNOWN));
  words_->withdraw(third);
  EXPECT_EQ(seen(Window::kErrorWord), wire::CompletionWord::make(first, CUDA_ERROR_INVALID_VALUE));
  words_->withdraw(third);
  words_->withdraw(0);
  EXPECT_EQ(seen(Window::kErrorWord), wire::CompletionWord::make(first, CUDA_ERROR_INVALID_VALUE));
  words_->withdraw(first);
  EXPECT_EQ(seen(Window::kErrorWord), 0u);
  EXPECT_EQ(words_->latch(CUDA_ERROR_ILLEGAL_ADDRESS), 4u);
  EXPECT_EQ(words_->latch(CUDA_ERROR_UNKNOWN), 0u) << "a sticky error stays";
}

TEST_F(CompletionWordsTest, AWordThatManyThreadsSignalNeverGoesBack) {
  constexpr uint64_t kSignals = 2'000'000;
  constexpr int kThreads = 3;
  std::atomic<uint64_t> next{0};
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (uint64_t mine; (mine = next.fetch_add(1) + 1) <= kSignals;) {
        words_->signal({kWord, mine}, CUDA_SUCCESS, transport::Wake::kNo);
      }
      --running;
    });
  }
  uint64_t last = 0, went_back = 0;
  while (running.load() > 0) {
    const uint64_t now = sequence();
    went_back += now < last;
    last = now;
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(went_back, 0u);
  EXPECT_EQ(sequence(), kSignals);
}

}  // namespace
}  // namespace rcuda::server
