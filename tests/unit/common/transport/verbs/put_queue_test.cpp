// The order of puts of several threads, with an adapter that only records requests.
#include "common/transport/verbs/put_queue.h"

#include <deque>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace rcuda::transport::verbs {
namespace {

struct Adapter {
  std::mutex mutex;
  std::vector<uint64_t> writes;  // addresses at the peer, in order
  std::deque<uint64_t> done;     // requests that ask for a completion
  ibv_mr registration{};
};
Adapter adapter;

int post_send(ibv_qp*, ibv_send_wr* request, ibv_send_wr**) {
  std::lock_guard lock(adapter.mutex);
  for (; request; request = request->next) {
    adapter.writes.push_back(request->wr.rdma.remote_addr);
    if (request->send_flags & IBV_SEND_SIGNALED) adapter.done.push_back(request->wr_id);
  }
  return 0;
}

// Returns one completion per call, so that the queue stays nearly full.
int poll_cq(ibv_cq*, int, ibv_wc* completion) {
  std::lock_guard lock(adapter.mutex);
  if (adapter.done.empty()) return 0;
  *completion = {};
  completion->status = IBV_WC_SUCCESS;
  completion->wr_id = adapter.done.front();
  adapter.done.pop_front();
  return 1;
}

class PutQueueTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kOthers = 1ull << 40;  // where the other thread writes

  PutQueueTest() {
    context_.ops.post_send = post_send;
    context_.ops.poll_cq = poll_cq;
    qp_.context = cq_.context = &context_;
    EXPECT_TRUE(queue_.open(&pd_).ok());
    queue_.start(&qp_, &cq_, 0, {0, 0});
  }
  void put(uint64_t offset, size_t bytes) {
    const std::vector<std::byte> content(bytes);
    const Bytes piece(content);
    EXPECT_TRUE(queue_
                    .put(
                        offset, std::span(&piece, 1), bytes, [] { return false; }, 0)
                    .ok());
  }

  ibv_context context_{};
  ibv_pd pd_{};
  ibv_qp qp_{};
  ibv_cq cq_{};
  LiveCounters counters_;
  PutQueue queue_{counters_, [](Loss::Sign, const std::string& what) { ADD_FAILURE() << what; }};
};

TEST_F(PutQueueTest, NothingComesBetweenThePartsOfAPut) {
  constexpr size_t kPart = 256 << 10, kParts = 3;
  constexpr int kRounds = 300;
  std::thread other([&] {
    for (int i = 0; i < kRounds; ++i) put(kOthers, 200 << 10);
  });
  for (int i = 0; i < kRounds; ++i) put(0, kParts * kPart);
  other.join();
  std::lock_guard lock(adapter.mutex);
  uint64_t next = 0;  // part of the put that is not complete
  for (const uint64_t address : adapter.writes) {
    if (next == 0 && address == kOthers) continue;
    ASSERT_EQ(address, next);
    next = (next + kPart) % (kParts * kPart);
  }
  EXPECT_EQ(next, 0u);
  EXPECT_EQ(adapter.writes.size(), kRounds * (kParts + 1));
}

}  // namespace
}  // namespace rcuda::transport::verbs

// Replaces libibverbs' function.
#undef ibv_reg_mr
extern "C" {
ibv_mr* ibv_reg_mr(ibv_pd*, void*, size_t, int) {
  return &rcuda::transport::verbs::adapter.registration;
}
ibv_mr* ibv_reg_mr_iova2(ibv_pd*, void*, size_t, uint64_t, unsigned) {
  return &rcuda::transport::verbs::adapter.registration;
}
int ibv_dereg_mr(ibv_mr*) { return 0; }
}
