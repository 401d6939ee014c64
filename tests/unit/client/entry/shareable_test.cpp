// Threads that release references to one allocation at the same time. The worker gets each release
// once, and the release of the last reference after all others.
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "api/opcodes.h"
#include "common/wire/codec.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

constexpr wire::ObjectId kAllocation = wire::kWorkerMinted | 7;
constexpr int kThreads = 4;
constexpr int kRounds = 500;

class ShareableTest : public TwoPuppetsTest {
 protected:
  using Answer = test::PuppetServer::Answer;

  void SetUp() override {
    TwoPuppetsTest::SetUp();
    memory_ = reinterpret_cast<void*>(allocate(first_session(), 0x7000000, 4096));
    on(api::Opcode::cuMemRetainAllocationHandle, [this](const Command&) {
      ++references_;
      wire::Encoder out;
      out.value(kAllocation);
      return Answer{CUDA_SUCCESS, {out.body().begin(), out.body().end()}};
    });
    // Like a driver, refuses a release of more references than there are.
    on(api::Opcode::rcuda_allocation_release, [this](const Command&) {
      if (references_ <= 1) return Answer{CUDA_ERROR_INVALID_VALUE, {}};
      --references_;
      return Answer{};
    });
    on(api::Opcode::cuMemRelease, [this](const Command&) {
      if (references_ != 1) return Answer{CUDA_ERROR_INVALID_VALUE, {}};
      --references_;
      return Answer{};
    });
  }
  void TearDown() override {
    for (const auto opcode : {api::Opcode::cuMemRetainAllocationHandle,
                              api::Opcode::rcuda_allocation_release, api::Opcode::cuMemRelease}) {
      on(opcode, {});
    }
    TwoPuppetsTest::TearDown();
  }
  void on(api::Opcode opcode, test::PuppetServer::Handler handler) {
    first().on(static_cast<uint16_t>(opcode), std::move(handler));
  }

  void* memory_ = nullptr;
  std::atomic<int> references_{0};  // the worker's count
};

TEST_F(ShareableTest, ThreadsGiveBackOneReferenceEach) {
  CUcontext current = nullptr;
  ASSERT_EQ(cuCtxGetCurrent(&current), CUDA_SUCCESS);
  for (int round = 0; round < kRounds; ++round) {
    CUmemGenericAllocationHandle handle = 0;
    for (int i = 0; i < kThreads; ++i) {
      ASSERT_EQ(cuMemRetainAllocationHandle(&handle, memory_), CUDA_SUCCESS);
    }
    std::atomic<int> ready{0};
    std::atomic<int> given_back{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        EXPECT_EQ(cuCtxSetCurrent(current), CUDA_SUCCESS);
        ++ready;
        while (ready.load() < kThreads) std::this_thread::yield();
        given_back += cuMemRelease(handle) == CUDA_SUCCESS;
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(given_back.load(), kThreads) << "round " << round;
    ASSERT_EQ(references_.load(), 0) << "round " << round;
    ASSERT_EQ(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  }
}

}  // namespace
}  // namespace rcuda::client
