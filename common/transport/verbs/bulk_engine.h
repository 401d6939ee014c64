// BulkEngine: the transfers of a verbs Link: RDMA writes and reads over queue pairs of their own.
//
// The peer's regions are known by the announcements that its Link sends over the control socket; a
// transfer of a region whose announcement is still on its way waits for it. Local memory needs a
// registration too:
//   - inside a region that this side exposes: the region's own, no byte is copied by the CPU
//     (pinned client memory, staging slots of a worker);
//   - otherwise, up to kBounceUpTo bytes: copied through registered slots;
//   - otherwise: registered for the time of the transfer. Such registrations are not kept, because
//     nothing would tell when the memory is unmapped.
//
// A region is withdrawn in two steps, because an access that the adapter refuses would end the
// queue pair: the owner asks (kRetire), the peer stops using it, waits for what is in flight and
// answers (kRetired), and only then the owner deregisters.
//
// transfer() may be called from any thread; callbacks run there, on the Link's progress thread or
// on its control thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "common/transport/link.h"
#include "common/transport/mapping.h"
#include "common/transport/transfer.h"
#include "common/transport/verbs/handles.h"

namespace rcuda::transport::verbs {

// A registration; shared by the transfers that use it.
struct Registration {
  uintptr_t base = 0;
  size_t bytes = 0;
  Mr mr;
};

struct BulkCounters {
  std::atomic<uint64_t>& work_requests;
  std::atomic<uint64_t>& doorbells;
  std::atomic<uint64_t>& completions;
  std::atomic<uint64_t>& transfer_bytes;
  std::atomic<uint64_t>& copied_bytes;
};

class BulkEngine {
 public:
  static constexpr uint32_t kDepth = 64;  // work requests in flight per queue pair
  static constexpr size_t kBounceUpTo = 256u << 10;

  BulkEngine(BulkCounters counters, std::function<void(const std::string&)> on_error,
             std::function<void(uint64_t region)> on_retired)
      : counters_(counters), on_error_(std::move(on_error)), on_retired_(std::move(on_retired)) {}

  void start(ibv_pd* pd, std::vector<ibv_qp*> qps, ibv_cq* cq, uint64_t max_message_bytes);

  // This side's regions.
  Result<std::shared_ptr<Registration>> add_local(void* base, size_t bytes);
  void remove_local(const std::shared_ptr<Registration>& registration);

  // The peer's regions, as announced. Control thread.
  Status add_remote(uint64_t id, uint64_t bytes, uint64_t address, uint64_t rkey);
  Status retire_remote(uint64_t id);

  // True if it waits for the region's announcement: expire() then knows a new deadline.
  bool transfer(bool to_peer, uint64_t region, uint64_t offset, std::byte* local, size_t bytes,
                std::chrono::milliseconds patience, TransferDone done);
  // Progress thread.
  void poll();
  // Fails transfers that have waited too long for an announcement; when to call again.
  std::chrono::steady_clock::time_point expire();
  // The queue pairs are in the error state: nothing new is posted.
  void stop(const Status& why);
  bool idle();
  // The queue pairs are gone: completes what never came back.
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
    std::shared_ptr<Registration> registration;  // none: through a slot
    int slot = -1;
    size_t queue = 0;
    std::shared_ptr<Transfer> transfer;
  };
  struct Waiting {
    bool to_peer;
    uint64_t region;
    uint64_t offset;
    std::byte* local;
    size_t bytes;
    Clock::time_point deadline;
    TransferDone done;
  };
  struct Queue {
    ibv_qp* qp = nullptr;
    uint32_t in_flight = 0;
  };
  // What must be called once the lock is released.
  using Outcomes = std::vector<std::pair<std::shared_ptr<Transfer>, Status>>;

  Status begin(const Waiting& request);
  std::shared_ptr<Registration> find_local(const std::byte* local, size_t bytes);
  void pump_locked(Outcomes& outcomes);
  bool take_slot_locked(Operation& operation);
  int post_locked(Operation* operation);
  void over_locked(Operation* operation, const Status& status, Outcomes& outcomes,
                   std::vector<uint64_t>& retired);
  void report(const Outcomes& outcomes, const std::vector<uint64_t>& retired);

  static constexpr size_t kSlots = 8;

  const BulkCounters counters_;
  const std::function<void(const std::string&)> on_error_;
  const std::function<void(uint64_t)> on_retired_;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  uint64_t piece_bytes_ = 0;

  std::mutex mutex_;  // guards everything below
  std::vector<Queue> queues_;
  std::deque<Operation> pending_;
  std::unordered_set<Operation*> in_flight_;
  std::vector<Waiting> waiting_;
  std::unordered_map<uint64_t, std::shared_ptr<Remote>> remotes_;
  uint64_t highest_remote_ = 0;
  std::map<uintptr_t, std::shared_ptr<Registration>> locals_;
  Mapping slot_memory_;
  std::shared_ptr<Registration> slots_;
  std::vector<int> free_slots_;
  bool stopped_ = false;
  Status why_stopped_;
};

}  // namespace rcuda::transport::verbs
