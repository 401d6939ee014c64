// BulkEngine: the transfers of a verbs Link, as RDMA writes and reads over separate queue pairs.
//
// The peer announces its regions over the control socket. A transfer of a region that has not been
// announced yet waits for the announcement. LocalMemory returns the registration of local memory;
// memory without a registration is copied through registered slots.
//
// A region is withdrawn in two steps, because an access that the adapter refuses would end the
// queue pair. The owner sends kRetire. The peer posts no more work requests for the region, waits
// for those in flight, and answers kRetired. Then the owner deregisters the region.
//
// A write with immediate consumes one of the receives that the peer has posted. Each queue pair has
// kReceives of them. The peer's progress thread posts them again before it reports the arrivals. If
// that thread is too slow, the writer's adapter waits and retries (RNR), and nothing is lost.
//
// Any thread may call transfer(). Callbacks run on the calling thread, on the Link's progress
// thread or on its control thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "common/base/mutex.h"
#include "common/transport/link.h"
#include "common/transport/mapping.h"
#include "common/transport/transfer.h"
#include "common/transport/verbs/handles.h"
#include "common/transport/verbs/local_memory.h"
#include "common/transport/verbs/loss.h"
#include "common/transport/verbs/put_queue.h"

namespace rcuda::transport::verbs {

class BulkEngine {
 public:
  static constexpr uint32_t kDepth = 64;  // work requests in flight per queue pair
  static constexpr uint32_t kReceives = 2 * kDepth;

  BulkEngine(LocalMemory& memory, LiveCounters& counters, Loss::Note on_error,
             ImmediateArrived on_immediate, std::function<void(uint64_t region)> on_retired)
      : memory_(memory),
        counters_(counters),
        on_error_(std::move(on_error)),
        on_immediate_(std::move(on_immediate)),
        on_retired_(std::move(on_retired)) {}

  void start(ibv_pd* pd, std::vector<ibv_qp*> qps, ibv_cq* cq, uint64_t max_message_bytes);

  // Called by the control thread when the peer announces or withdraws a region.
  Status add_remote(uint64_t id, uint64_t bytes, uint64_t address, uint64_t rkey);
  Status retire_remote(uint64_t id);

  // The address of bytes in the peer's region, for a caller that posts the write itself. The caller
  // must not let retire_remote() run before the write is confirmed. kNotFound if the region has
  // been withdrawn, kUnavailable if it has not been announced yet, kInvalidArgument if the bytes
  // are outside of it.
  Result<PutQueue::Target> place_of(RegionId region, uint64_t offset, uint64_t bytes);

  // Returns true if the transfer waits for the region's announcement. Then call expire() again: it
  // may return an earlier time.
  bool transfer(const TransferRequest& what, std::chrono::milliseconds patience, TransferDone done);
  // Called by the progress thread.
  void poll();
  // Fails transfers that waited too long for an announcement. Returns the time at which to call
  // expire() again.
  std::chrono::steady_clock::time_point expire();
  // Makes the engine post nothing more. Operations that have not been posted fail with `why`.
  void stop(const Status& why);
  // After stop(): returns when no thread uses the queue pairs.
  void quiesce();
  bool idle();
  // Call it after the queue pairs are destroyed: fails the operations that have no completion.
  void fail_in_flight();

 private:
  using Clock = std::chrono::steady_clock;
  struct Remote {
    uint64_t id = 0;
    uint64_t bytes = 0;
    uint64_t address = 0;
    uint32_t rkey = 0;
    uint32_t in_flight = 0;
    bool retired = false;
  };
  struct Operation {
    bool to_peer = false;
    std::shared_ptr<Remote> remote;
    uint64_t offset = 0;
    std::byte* local = nullptr;
    uint32_t bytes = 0;
    uint32_t immediate = 0;
    std::shared_ptr<Registration> registration;  // null: the bytes are copied through a slot
    int slot = -1;
    size_t queue = 0;
    std::shared_ptr<PendingTransfer> transfer;
  };
  struct Waiting : TransferRequest {
    Clock::time_point deadline;
    TransferDone done;
  };
  struct Queue {
    ibv_qp* qp = nullptr;
    uint32_t in_flight = 0;
  };
  // The outcomes of pieces. They are reported after the lock is released.
  using Outcomes = std::vector<std::pair<std::shared_ptr<PendingTransfer>, Status>>;

  Status begin(const Waiting& request);
  Operation* next_locked(Outcomes& outcomes) RCUDA_REQUIRES(mutex_);
  void pump();
  Status make_slots_locked() RCUDA_REQUIRES(mutex_);
  bool take_batch_locked(Outcomes& outcomes, std::vector<Operation*>& batch) RCUDA_REQUIRES(mutex_);
  int post(std::vector<Operation*>& batch);
  void describe(const Operation& operation, ibv_send_wr& request, ibv_sge& piece);
  void over_locked(Operation* operation, bool done, Outcomes& outcomes,
                   std::vector<uint64_t>& retired) RCUDA_REQUIRES(mutex_);
  void report(const Outcomes& outcomes, const std::vector<uint64_t>& retired);
  void receive(const ibv_wc& completion);

  static constexpr size_t kMaxPosted = 32;  // work requests of one ibv_post_send() call
  static constexpr size_t kSlots = 8;
  static constexpr size_t kSlotBytes = 256u << 10;

  LocalMemory& memory_;
  LiveCounters& counters_;
  const Loss::Note on_error_;
  const ImmediateArrived on_immediate_;
  const std::function<void(uint64_t)> on_retired_;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  uint64_t piece_bytes_ = 0;

  Mutex mutex_;
  // post() and poll() read the queue pairs and the slots without the lock: the queue pairs do not
  // change after start(), and the slots are made before the first operation has one.
  std::vector<Queue> queues_;
  std::deque<Operation> pending_ RCUDA_GUARDED_BY(mutex_);
  std::unordered_set<Operation*> in_flight_ RCUDA_GUARDED_BY(mutex_);
  uint32_t posting_ RCUDA_GUARDED_BY(mutex_) = 0;  // threads that are posting without the lock
  // Transfers with failed pieces. The transfers complete when the Link ends, with the Link's
  // reason.
  std::vector<std::shared_ptr<PendingTransfer>> failed_ RCUDA_GUARDED_BY(mutex_);
  std::vector<Waiting> waiting_ RCUDA_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, std::shared_ptr<Remote>> remotes_ RCUDA_GUARDED_BY(mutex_);
  uint64_t highest_remote_ RCUDA_GUARDED_BY(mutex_) = 0;
  Mapping slot_memory_;
  std::shared_ptr<Registration> slots_;
  std::vector<int> free_slots_ RCUDA_GUARDED_BY(mutex_);
  bool stopped_ RCUDA_GUARDED_BY(mutex_) = false;
  Status why_stopped_ RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::transport::verbs
