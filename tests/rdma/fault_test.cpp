// Faults under a verbs Link and its error messages: the host runs out of memory at every step of
// making the Link and later, and queue pairs go into error. Runs in the rig.
#include <algorithm>
#include <future>

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/unique_fd.h"
#include "tests/contract/link_contract.h"
#include "tests/rdma/verbs_faults.h"

namespace rcuda::test {
namespace {

using transport::Link;
using transport::LinkOptions;
using transport::Region;

// The remedy for an administrator, which the message must contain.
constexpr char kMemoryMend[] = "free memory on this host";

class VerbsFault : public testing::Test {
 protected:
  void TearDown() override {
    refuse_memory(0);
    refuse_threads(0);
  }

  void connect() {
    Result<LinkPair> pair =
        make_link_pair(medium_named("verbs"), LinkOptions{.window_bytes = 1 << 20},
                       LinkOptions{.window_bytes = 1 << 20});
    ASSERT_TRUE(pair.ok()) << pair.status().message();
    client_ = std::move(pair->client);
    server_ = std::move(pair->server);
  }

  static Status wait_for_end(Link& link) {
    return link.wait([] { return false; }, soon());
  }

  std::unique_ptr<Link> client_;
  std::unique_ptr<Link> server_;
};

TEST_F(VerbsFault, EveryRefusedAllocationOfTheMakingIsSaidWithItsMend) {
  connect();  // makes everything that a process makes once
  client_.reset();
  server_.reset();
  long refused = 0;
  for (;; ++refused) {
    refuse_memory(refused + 1);
    Result<LinkPair> pair =
        make_link_pair(medium_named("verbs"), LinkOptions{.window_bytes = 1 << 20},
                       LinkOptions{.window_bytes = 1 << 20});
    const long calls = memory_calls();
    refuse_memory(0);
    if (calls <= refused) {
      EXPECT_TRUE(pair.ok()) << pair.status().message();
      break;
    }
    ASSERT_FALSE(pair.ok()) << "call " << refused + 1 << " of " << calls;
    EXPECT_NE(pair.status().context().find(kMemoryMend), std::string::npos)
        << "call " << refused + 1 << ": " << pair.status().message();
  }
  // Two sides with a window, a staging ring, their registrations, a protection domain, a channel,
  // three completion queues and five queue pairs each.
  EXPECT_GE(refused, 2 * 14);
  connect();  // nothing of the failed attempts is left
}

TEST_F(VerbsFault, AThreadThatCannotBeStartedIsSaidWithItsMend) {
  connect();
  client_.reset();
  server_.reset();
  // The first thread belongs to the test, and makes the server's end. After that each Link needs
  // two threads. Both sides must fail: a side with a Link would not try another medium with its
  // peer.
  for (const long first : {2, 3, 4, 5}) {
    SCOPED_TRACE(first);
    refuse_threads(first);
    const Result<LinkEnds> ends = make_link_ends(medium_named("verbs"));
    refuse_threads(0);
    ASSERT_TRUE(ends.ok()) << ends.status().message();
    for (const Result<std::unique_ptr<Link>>* end : {&ends->client, &ends->server}) {
      ASSERT_FALSE(end->ok());
      EXPECT_NE(end->status().context().find("ulimit -u"), std::string::npos)
          << end->status().message();
    }
  }
  connect();
}

TEST_F(VerbsFault, ARegionThatCannotBeRegisteredIsRefusedAndTheSessionGoesOn) {
  connect();
  std::vector<std::byte> block(1 << 20);
  refuse_memory(1);
  const Result<Region> refused = client_->expose(block.data(), block.size());
  refuse_memory(0);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kOutOfMemory);
  EXPECT_NE(refused.status().context().find(kMemoryMend), std::string::npos)
      << refused.status().message();
  ASSERT_TRUE(client_->status().ok());
  const Result<Region> region = client_->expose(block.data(), block.size());
  ASSERT_TRUE(region.ok()) << region.status().message();
  std::vector<std::byte> bytes(block.size());
  fill_pattern(bytes, 9);
  EXPECT_TRUE(write_and_wait(*server_, region->id, 0, bytes).ok());
  EXPECT_TRUE(has_pattern(block, 9));
}

TEST_F(VerbsFault, ATransferWithoutMemoryForItsSlotsFailsAndTheNextOneDoesNot) {
  connect();
  SharedBlock block(1 << 20);
  const Result<Region> region = client_->expose(block.bytes.data(), block.bytes.size(), block.fd);
  ASSERT_TRUE(region.ok());
  std::vector<std::byte> bytes(4096);  // below any threshold of registration
  fill_pattern(bytes, 3);
  refuse_memory(1);
  const Status refused = write_and_wait(*server_, region->id, 0, bytes);
  refuse_memory(0);
  EXPECT_EQ(refused.code(), Code::kOutOfMemory);
  EXPECT_NE(refused.context().find(kMemoryMend), std::string::npos) << refused.message();
  EXPECT_TRUE(write_and_wait(*server_, region->id, 0, bytes).ok());
  EXPECT_TRUE(has_pattern(std::span<const std::byte>(block.bytes).first(bytes.size()), 3));
}

// Breaks the queue pair of commands, then a queue pair of transfers. The other side sleeps and
// sends nothing, so it must be notified.
TEST_F(VerbsFault, AQueuePairInErrorEndsBothSidesAndSaysWhatToLookAt) {
  for (const bool commands : {true, false}) {
    SCOPED_TRACE(commands ? "commands" : "transfers");
    const size_t others = queue_pairs().size();
    SharedBlock block(8 << 20);
    connect();
    const Result<Region> region = server_->expose(block.bytes.data(), block.bytes.size(), block.fd);
    ASSERT_TRUE(region.ok());
    // The two sides make queue pairs in turns, the client first. The client's first queue pair is
    // for commands.
    const std::vector<ibv_qp*> pairs = queue_pairs();
    ASSERT_GE(pairs.size(), others + 4);
    auto sleeper = std::async(std::launch::async, [&] { return wait_for_end(*server_); });
    std::vector<std::byte> bytes(block.bytes.size());
    if (commands) {
      break_queue_pair(pairs[others]);
    } else {
      for (size_t i = others + 2; i < pairs.size(); i += 2) break_queue_pair(pairs[i]);
    }
    std::promise<Status> transfer;
    client_->write(region->id, 0, bytes.data(), bytes.size(),
                   [&](const Status& status) { transfer.set_value(status); });
    const Status end = wait_for_end(*client_);
    EXPECT_EQ(end.code(), Code::kUnavailable);
    EXPECT_NE(end.context().find("rdma res show qp"), std::string::npos) << end.message();
    const Status outcome = transfer.get_future().get();
    if (!outcome.ok()) {
      EXPECT_EQ(outcome.message(), end.message());
    }
    EXPECT_EQ(sleeper.get().code(), Code::kUnavailable);
    client_.reset();
    server_.reset();
  }
}

// An adapter reports an error of a queue pair or of itself to one caller only. The error concerns
// the Link with the queue pair, or all Links that use the adapter.
TEST_F(VerbsFault, WhatTheAdapterReportsEndsThoseWhomItConcerns) {
  connect();
  const std::unique_ptr<Link> other_client = std::move(client_);
  const std::unique_ptr<Link> other_server = std::move(server_);
  const size_t others = queue_pairs().size();
  connect();
  ibv_qp* const qp = queue_pairs()[others];
  ibv_context* const context = qp->context;
  // Replaces the kernel's descriptor by one that the test makes readable, because a soft device
  // never reports this itself.
  const UniqueFd kernels(::dup(context->async_fd));
  const UniqueFd ready(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const auto report = [&](ibv_async_event event) {
    report_event(context, event);
    const uint64_t one = 1;
    ASSERT_EQ(::write(ready.get(), &one, sizeof one), ssize_t{sizeof one});
  };
  ASSERT_EQ(::dup2(ready.get(), context->async_fd), context->async_fd);
  // A sleeping progress thread waits on the old descriptor until a transfer wakes it. So the test
  // starts transfers, of a region that does not exist.
  ibv_async_event event{};
  event.event_type = IBV_EVENT_QP_FATAL;
  event.element.qp = qp;
  report(event);
  std::vector<std::byte> bytes(64);
  for (Link* link : {client_.get(), other_client.get()}) {
    link->read(transport::RegionId{1}, 0, bytes.data(), bytes.size(), [](const Status&) {});
  }
  EXPECT_EQ(wait_for_end(*client_).code(), Code::kUnavailable);
  EXPECT_NE(client_->status().context().find("the adapter stopped the session's queues"),
            std::string::npos)
      << client_->status().message();
  EXPECT_TRUE(other_client->status().ok()) << other_client->status().message();
  event = {};
  event.event_type = IBV_EVENT_DEVICE_FATAL;
  report(event);
  EXPECT_EQ(wait_for_end(*other_client).code(), Code::kUnavailable);
  EXPECT_NE(other_client->status().context().find("was removed"), std::string::npos)
      << other_client->status().message();
  ::dup2(kernels.get(), context->async_fd);
}

// Requests that arrive while another thread is posting are posted by that thread, as one list.
std::atomic<int> lists{0};
std::atomic<int> requests{0};
std::promise<void>* gate = nullptr;
int (*real_post_send)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;

int gated_post_send(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) {
  for (const ibv_send_wr* request = list; request != nullptr; request = request->next) ++requests;
  if (++lists == 1) gate->get_future().wait();
  return real_post_send(qp, list, bad);
}

TEST_F(VerbsFault, PutsOfManyThreadsShareADoorbell) {
  connect();
  constexpr int kThreads = 8;
  std::promise<void> open;
  gate = &open;
  lists = requests = 0;
  ibv_context_ops& ops = queue_pairs().front()->context->ops;
  real_post_send = ops.post_send;
  const transport::LinkCounters before = client_->counters();
  ops.post_send = gated_post_send;
  std::thread first([&] { EXPECT_TRUE(put_word(*client_, 8, 1, transport::Wake::kNo).ok()); });
  while (lists == 0) std::this_thread::yield();
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back(
        [&, i] { EXPECT_TRUE(put_word(*client_, 16 + 8 * i, 1, transport::Wake::kNo).ok()); });
  }
  for (std::thread& thread : threads) thread.join();  // none of the threads waits for the adapter
  EXPECT_EQ(requests, 1);
  open.set_value();
  first.join();
  ops.post_send = real_post_send;
  EXPECT_EQ(lists, 2);
  EXPECT_EQ(requests, 1 + kThreads);
  const transport::LinkCounters after = client_->counters();
  EXPECT_EQ(after.work_requests - before.work_requests, 1u + kThreads);
  EXPECT_EQ(after.doorbells - before.doorbells, 2u);
  while (load(*server_, 16 + 8 * (kThreads - 1)) != 1) std::this_thread::yield();
}

// A session that uses the address and the key of another session's memory. redirected_post_send()
// changes its requests before they reach the adapter.
class VerbsThief : public VerbsFault {
 protected:
  struct Memory {
    uint64_t address;
    uint32_t key;
  };
  static inline Memory wanted;
  static inline uint32_t own_key = 0;

  static int redirected_post_send(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) {
    for (ibv_send_wr* request = list; request != nullptr; request = request->next) {
      const bool one_sided = request->opcode == IBV_WR_RDMA_WRITE ||
                             request->opcode == IBV_WR_RDMA_READ ||
                             request->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
      if (!one_sided || request->wr.rdma.rkey != own_key) continue;
      request->wr.rdma.remote_addr = wanted.address;
      request->wr.rdma.rkey = wanted.key;
    }
    return real_post_send(qp, list, bad);
  }

  static Memory memory_of(const ibv_mr* registered) {
    return {reinterpret_cast<uint64_t>(registered->addr), registered->rkey};
  }
  static ibv_mr* find(const void* base) {
    for (ibv_mr* memory : remote_memory()) {
      if (memory->addr == base) return memory;
    }
    return nullptr;
  }

  // Makes a session whose client writes or reads this memory instead of its own.
  void expect_refused(const Memory& memory, bool writes) {
    connect();
    SharedBlock own(4096);
    const Result<Region> region = server_->expose(own.bytes.data(), own.bytes.size(), own.fd);
    ASSERT_TRUE(region.ok()) << region.status().message();
    ASSERT_NE(find(own.bytes.data()), nullptr);
    wanted = memory_of(find(own.bytes.data()));
    own_key = wanted.key;
    // All clients of this process have one context of their device.
    ibv_context_ops& ops = queue_pairs().front()->context->ops;
    real_post_send = ops.post_send;
    ops.post_send = redirected_post_send;
    // First a request to the session's own memory, which is allowed.
    std::vector<std::byte> bytes(own.bytes.size(), std::byte{0x5a});
    EXPECT_TRUE(write_and_wait(*client_, region->id, 0, bytes).ok());
    EXPECT_EQ(own.bytes.back(), std::byte{0x5a});
    wanted = memory;
    std::promise<Status> outcome;
    const auto done = [&](const Status& status) { outcome.set_value(status); };
    std::fill(bytes.begin(), bytes.end(), std::byte{0x66});
    if (writes) {
      client_->write(region->id, 0, bytes.data(), bytes.size(), done);
    } else {
      client_->read(region->id, 0, bytes.data(), bytes.size(), done);
    }
    // The other side's adapter refuses the request and stops its queue pair. That side's Link ends,
    // and the client may notice this end first.
    const Status end = wait_for_end(*client_);
    EXPECT_TRUE(end.context().find("remote access error") != std::string::npos ||
                end.context().find("the peer closed the connection") != std::string::npos)
        << end.message();
    EXPECT_FALSE(outcome.get_future().get().ok());
    ops.post_send = real_post_send;
    EXPECT_TRUE(writes || std::count(bytes.begin(), bytes.end(), std::byte{0x66}) == 4096);
    client_.reset();
    server_.reset();
  }
};

TEST_F(VerbsThief, TheAdapterRefusesAKeyOfAnotherSession) {
  connect();
  const std::unique_ptr<Link> other_client = std::move(client_);
  const std::unique_ptr<Link> other_server = std::move(server_);
  SharedBlock block(1 << 20);
  const Result<Region> region =
      other_server->expose(block.bytes.data(), block.bytes.size(), block.fd);
  ASSERT_TRUE(region.ok()) << region.status().message();
  std::vector<std::byte> bytes(block.bytes.size());
  fill_pattern(bytes, 5);
  ASSERT_TRUE(write_and_wait(*other_client, region->id, 0, bytes).ok());
  // The region and both windows.
  const std::vector<ibv_mr*> of_other = remote_memory();
  ASSERT_GE(of_other.size(), 3u);
  for (const ibv_mr* memory : of_other) {
    expect_refused(memory_of(memory), true);
    expect_refused(memory_of(memory), false);
  }
  EXPECT_TRUE(has_pattern(block.bytes, 5));
  fill_pattern(bytes, 6);
  EXPECT_TRUE(write_and_wait(*other_client, region->id, 0, bytes).ok());
  EXPECT_TRUE(has_pattern(block.bytes, 6));
}

TEST_F(VerbsThief, AKeyEndsWithItsSession) {
  const size_t before = remote_memory().size();
  connect();
  SharedBlock block(1 << 20);
  fill_pattern(block.bytes, 7);
  const Result<Region> region = server_->expose(block.bytes.data(), block.bytes.size(), block.fd);
  ASSERT_TRUE(region.ok()) << region.status().message();
  ASSERT_NE(find(block.bytes.data()), nullptr);
  const Memory ended = memory_of(find(block.bytes.data()));
  client_.reset();
  server_.reset();
  EXPECT_EQ(remote_memory().size(), before);
  expect_refused(ended, true);
  expect_refused(ended, false);
  EXPECT_TRUE(has_pattern(block.bytes, 7));
}

}  // namespace
}  // namespace rcuda::test
