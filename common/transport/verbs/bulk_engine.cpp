#include "common/transport/verbs/bulk_engine.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <thread>

#include <arpa/inet.h>

#include "common/base/units.h"
#include "common/transport/verbs/errors.h"
#include "common/transport/violation.h"

namespace rcuda::transport::verbs {
namespace {

// The most bytes of a piece: large enough that the cost of a work request does not matter, small
// enough to spread one transfer over several queue pairs. start() reduces it to the port's largest
// message.
constexpr uint64_t kMaxPieceBytes = 1u << 20;
constexpr size_t kMaxRegions = 1u << 20;

Status not_found(uint64_t region) {
  return {Code::kNotFound, "region " + std::to_string(region) +
                               " of the peer does not exist: the peer withdrew it, or did not "
                               "announce it in time"};
}

}  // namespace

void BulkEngine::start(ibv_pd* pd, std::vector<ibv_qp*> qps, ibv_cq* cq,
                       uint64_t max_message_bytes) {
  pd_ = pd;
  cq_ = cq;
  piece_bytes_ = std::min(kMaxPieceBytes, max_message_bytes);
  for (ibv_qp* qp : qps) queues_.push_back({qp, 0});
}

Status BulkEngine::add_remote(uint64_t id, uint64_t bytes, uint64_t address, uint64_t rkey) {
  std::vector<Waiting> ready;
  {
    MutexLock lock(mutex_);
    if (id <= highest_remote_ || bytes == 0 || remotes_.size() >= kMaxRegions) {
      return {Code::kProtocol,
              violation("the peer announced region " + std::to_string(id) + " of " +
                        std::to_string(bytes) + " bytes after region " +
                        std::to_string(highest_remote_) +
                        ": numbers must increase, regions must not be empty, and the limit is " +
                        std::to_string(kMaxRegions) + " regions")};
    }
    highest_remote_ = id;
    remotes_[id] =
        std::make_shared<Remote>(Remote{id, bytes, address, static_cast<uint32_t>(rkey), 0, false});
    const auto first = std::partition(waiting_.begin(), waiting_.end(), [id](const Waiting& w) {
      return static_cast<uint64_t>(w.region) > id;
    });
    std::move(first, waiting_.end(), std::back_inserter(ready));
    waiting_.erase(first, waiting_.end());
  }
  for (const Waiting& request : ready) {
    if (Status status = begin(request); !status.ok()) request.done(status);
  }
  return {};
}

Status BulkEngine::retire_remote(uint64_t id) {
  Outcomes outcomes;
  std::vector<uint64_t> retired;
  {
    MutexLock lock(mutex_);
    const auto found = remotes_.find(id);
    if (found == remotes_.end()) {
      return {Code::kProtocol, violation("the peer withdrew region " + std::to_string(id) +
                                         ", which it has not announced or has already withdrawn")};
    }
    const std::shared_ptr<Remote> remote = found->second;
    remotes_.erase(found);
    remote->retired = true;
    for (auto at = pending_.begin(); at != pending_.end();) {
      if (at->remote != remote) {
        ++at;
        continue;
      }
      outcomes.emplace_back(at->transfer, not_found(id));
      at = pending_.erase(at);
    }
    if (remote->in_flight == 0) retired.push_back(id);
  }
  report(outcomes, retired);
  return {};
}

Result<PutQueue::Target> BulkEngine::place_of(RegionId region, uint64_t offset, uint64_t bytes) {
  const auto id = static_cast<uint64_t>(region);
  MutexLock lock(mutex_);
  if (id > highest_remote_) {
    return Status(Code::kUnavailable,
                  "the peer has not announced region " + std::to_string(id) + " yet");
  }
  const auto found = remotes_.find(id);
  if (found == remotes_.end()) return not_found(id);
  const Remote& remote = *found->second;
  if (bytes > remote.bytes || offset > remote.bytes - bytes) {
    return Status(Code::kInvalidArgument,
                  "a put of " + std::to_string(bytes) + " bytes at offset " +
                      std::to_string(offset) + " is outside of region " + std::to_string(id) +
                      " of the peer, which has " + std::to_string(remote.bytes) + " bytes");
  }
  return PutQueue::Target{remote.address + offset, remote.rkey};
}

bool BulkEngine::transfer(const TransferRequest& what, std::chrono::milliseconds patience,
                          TransferDone done) {
  if (what.bytes == 0) {
    done({});
    return false;
  }
  const auto deadline = patience.count() == 0 ? Clock::time_point::max() : Clock::now() + patience;
  Waiting request{what, deadline, std::move(done)};
  {
    MutexLock lock(mutex_);
    if (!stopped_ && static_cast<uint64_t>(what.region) > highest_remote_) {
      waiting_.push_back(std::move(request));
      return true;
    }
  }
  if (Status status = begin(request); !status.ok()) request.done(status);
  return false;
}

Status BulkEngine::begin(const Waiting& request) {
  std::shared_ptr<Remote> remote;
  {
    MutexLock lock(mutex_);
    if (stopped_) return why_stopped_;
    const auto id = static_cast<uint64_t>(request.region);
    const auto found = remotes_.find(id);
    if (found == remotes_.end()) return not_found(id);
    remote = found->second;
    if (request.bytes > remote->bytes || request.offset > remote->bytes - request.bytes) {
      return {Code::kInvalidArgument,
              "a transfer of " + std::to_string(request.bytes) + " bytes at offset " +
                  std::to_string(request.offset) + " is outside of region " + std::to_string(id) +
                  " of the peer, which has " + std::to_string(remote->bytes) + " bytes"};
    }
  }
  const std::shared_ptr<Registration> registration = memory_.prepare(request.local, request.bytes);
  const uint64_t most = registration ? piece_bytes_ : std::min<uint64_t>(piece_bytes_, kSlotBytes);
  const uint64_t share = (request.bytes + queues_.size() - 1) / queues_.size();
  // Pieces below 64 KiB would cost more than a second queue pair gains.
  const uint64_t piece = std::clamp<uint64_t>(share, std::min<uint64_t>(64u << 10, most), most);
  const size_t pieces = (request.bytes + piece - 1) / piece;
  const auto counted = [this, bytes = request.bytes, done = request.done](const Status& status) {
    if (status.ok()) counters_.transfer_bytes.fetch_add(bytes, std::memory_order_relaxed);
    done(status);
  };
  const auto transfer = std::make_shared<PendingTransfer>(pieces, counted);
  {
    MutexLock lock(mutex_);
    for (uint64_t at = 0; at < request.bytes; at += piece) {
      Operation operation;
      operation.to_peer = request.to_peer;
      operation.remote = remote;
      operation.offset = request.offset + at;
      operation.local = request.local + at;
      operation.bytes = static_cast<uint32_t>(std::min(piece, request.bytes - at));
      operation.immediate = request.immediate;
      operation.registration = registration;
      operation.transfer = transfer;
      pending_.push_back(std::move(operation));
    }
  }
  pump();
  return {};
}

Status BulkEngine::make_slots_locked() {
  const size_t bytes = kSlots * kSlotBytes;
  slot_memory_ = Mapping::anonymous(bytes);
  if (!slot_memory_) {
    return allocation_error(
        errno, "allocating " + exact_bytes_text(bytes) + " of staging memory for RDMA transfers");
  }
  auto slots = std::make_shared<Registration>();
  slots->mr.reset(ibv_reg_mr(pd_, slot_memory_.data(), bytes, IBV_ACCESS_LOCAL_WRITE));
  if (!slots->mr) return registration_error(errno, bytes);
  slots_ = std::move(slots);
  for (size_t i = 0; i < kSlots; ++i) free_slots_.push_back(static_cast<int>(i));
  return {};
}

// Takes the next operation that can be posted now, and assigns it a queue pair and, if needed, a
// slot. The caller posts it. Returns null if no operation can be posted.
BulkEngine::Operation* BulkEngine::next_locked(Outcomes& outcomes) {
  while (!pending_.empty()) {
    Operation& next = pending_.front();
    if (stopped_ || next.remote->retired) {
      outcomes.emplace_back(next.transfer, stopped_ ? why_stopped_ : not_found(next.remote->id));
      pending_.pop_front();
      continue;
    }
    const auto queue =
        std::min_element(queues_.begin(), queues_.end(),
                         [](const Queue& a, const Queue& b) { return a.in_flight < b.in_flight; });
    if (queue->in_flight >= kDepth) return nullptr;
    if (!next.registration) {
      const Status slots = slots_ ? Status() : make_slots_locked();
      if (!slots.ok()) {
        outcomes.emplace_back(next.transfer, slots);
        pending_.pop_front();
        continue;
      }
      if (free_slots_.empty()) return nullptr;
      next.slot = free_slots_.back();
      free_slots_.pop_back();
    }
    next.queue = static_cast<size_t>(queue - queues_.begin());
    auto* operation = new Operation(std::move(next));  // freed by over_locked()
    pending_.pop_front();
    in_flight_.insert(operation);
    ++operation->remote->in_flight;
    ++queue->in_flight;
    return operation;
  }
  return nullptr;
}

// Takes operations to post together; returns false if there are none. An operation whose bytes are
// copied through a slot ends the batch, so that copying further bytes does not delay the posting.
bool BulkEngine::take_batch_locked(Outcomes& outcomes, std::vector<Operation*>& batch) {
  batch.clear();
  while (batch.size() < kMaxPosted && (batch.empty() || batch.back()->registration)) {
    Operation* operation = next_locked(outcomes);
    if (operation == nullptr) break;
    batch.push_back(operation);
  }
  return !batch.empty();
}

// Posts operations until no further operation can be posted. Releases the lock while it copies and
// posts, because the control thread also takes the lock. The control thread sends the heartbeats,
// so it must not wait long.
void BulkEngine::pump() {
  Outcomes outcomes;
  std::vector<uint64_t> retired;
  std::vector<Operation*> batch;
  int error = 0;
  {
    MutexLock lock(mutex_);
    while (take_batch_locked(outcomes, batch)) {
      ++posting_;
      lock.unlock();
      const int failed = post(batch);
      lock.lock();
      --posting_;
      if (failed != 0) error = failed;
      for (Operation* operation : batch) over_locked(operation, false, outcomes, retired);
    }
  }
  if (error != 0) {
    on_error_(Loss::Sign::kRequest,
              allocation_error(error, "posting an RDMA transfer (ibv_post_send)").context());
  }
  report(outcomes, retired);
}

// For each queue pair, posts one list of work requests, with one doorbell. A posted operation may
// be deleted before this returns. `batch` keeps the operations that were not posted.
int BulkEngine::post(std::vector<Operation*>& batch) {
  std::array<ibv_send_wr, kMaxPosted> requests;
  std::array<ibv_sge, kMaxPosted> pieces;
  std::vector<Operation*> left;
  int error = 0;
  std::stable_sort(batch.begin(), batch.end(),
                   [](const Operation* a, const Operation* b) { return a->queue < b->queue; });
  for (size_t begin = 0, end = 0; begin < batch.size(); begin = end) {
    const size_t queue = batch[begin]->queue;
    for (; end < batch.size() && batch[end]->queue == queue; ++end) {
      describe(*batch[end], requests[end], pieces[end]);
      if (end != begin) requests[end - 1].next = &requests[end];
    }
    counters_.work_requests.fetch_add(end - begin, std::memory_order_relaxed);
    counters_.doorbells.fetch_add(1, std::memory_order_relaxed);
    ibv_send_wr* bad = &requests[begin];
    const int failed = ibv_post_send(queues_[queue].qp, &requests[begin], &bad);
    if (failed == 0) continue;
    error = failed;
    const auto first = static_cast<ptrdiff_t>(bad - requests.data());
    left.insert(left.end(), batch.begin() + first, batch.begin() + static_cast<ptrdiff_t>(end));
  }
  batch.swap(left);
  return error;
}

void BulkEngine::describe(const Operation& operation, ibv_send_wr& request, ibv_sge& piece) {
  piece = {reinterpret_cast<uint64_t>(operation.local), operation.bytes, 0};
  if (operation.registration) {
    piece.lkey = operation.registration->mr->lkey;
  } else {
    std::byte* slot = slot_memory_.data() + operation.slot * kSlotBytes;
    if (operation.to_peer) {
      std::memcpy(slot, operation.local, operation.bytes);
      counters_.copied_bytes.fetch_add(operation.bytes, std::memory_order_relaxed);
    }
    piece.addr = reinterpret_cast<uint64_t>(slot);
    piece.lkey = slots_->mr->lkey;
  }
  request = {};
  request.wr_id = reinterpret_cast<uint64_t>(&operation);
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = !operation.to_peer         ? IBV_WR_RDMA_READ
                   : operation.immediate != 0 ? IBV_WR_RDMA_WRITE_WITH_IMM
                                              : IBV_WR_RDMA_WRITE;
  request.imm_data = htonl(operation.immediate);
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = operation.remote->address + operation.offset;
  request.wr.rdma.rkey = operation.remote->rkey;
}

void BulkEngine::over_locked(Operation* raw, bool done, Outcomes& outcomes,
                             std::vector<uint64_t>& retired) {
  const std::unique_ptr<Operation> operation(raw);
  in_flight_.erase(raw);
  --queues_[operation->queue].in_flight;
  if (operation->slot >= 0) free_slots_.push_back(operation->slot);
  if (--operation->remote->in_flight == 0 && operation->remote->retired) {
    retired.push_back(operation->remote->id);
  }
  if (done || stopped_) {
    outcomes.emplace_back(operation->transfer, done ? Status() : why_stopped_);
  } else {
    failed_.push_back(operation->transfer);
  }
}

void BulkEngine::report(const Outcomes& outcomes, const std::vector<uint64_t>& retired) {
  for (const auto& [transfer, status] : outcomes) transfer->piece_done(status);
  for (const uint64_t region : retired) on_retired_(region);
}

void BulkEngine::poll() {
  ibv_wc completions[16];
  int count;
  while ((count = ibv_poll_cq(cq_, static_cast<int>(std::size(completions)), completions)) > 0) {
    counters_.completions.fetch_add(count, std::memory_order_relaxed);
    // Completions of receives belong to no operation.
    const auto first_receive = std::stable_partition(
        completions, completions + count, [](const ibv_wc& done) { return done.wr_id != 0; });
    std::for_each(first_receive, completions + count,
                  [this](const ibv_wc& completion) { receive(completion); });
    const std::span done(completions, first_receive);
    for (const ibv_wc& completion : done) {
      const auto& operation = *reinterpret_cast<const Operation*>(completion.wr_id);
      if (completion.status != IBV_WC_SUCCESS || operation.slot < 0 || operation.to_peer) continue;
      std::memcpy(operation.local, slot_memory_.data() + operation.slot * kSlotBytes,
                  operation.bytes);
      counters_.copied_bytes.fetch_add(operation.bytes, std::memory_order_relaxed);
    }
    Outcomes outcomes;
    std::vector<uint64_t> retired;
    auto sign = Loss::Sign::kNone;
    std::string error;
    {
      MutexLock lock(mutex_);
      for (const ibv_wc& completion : done) {
        const bool failed = completion.status != IBV_WC_SUCCESS;
        const auto seen = !failed                                    ? Loss::Sign::kNone
                          : completion.status == IBV_WC_WR_FLUSH_ERR ? Loss::Sign::kFlushed
                                                                     : Loss::Sign::kRequest;
        if (seen > sign) {
          sign = seen;
          error = completion_problem(completion.status, "an RDMA transfer failed");
        }
        over_locked(reinterpret_cast<Operation*>(completion.wr_id), !failed, outcomes, retired);
      }
    }
    if (sign != Loss::Sign::kNone) on_error_(sign, error);
    report(outcomes, retired);
  }
  pump();
}

// Handles the arrival of an immediate, or a receive that was flushed with its queue pair.
void BulkEngine::receive(const ibv_wc& completion) {
  counters_.receives.fetch_add(1, std::memory_order_relaxed);
  if (completion.status != IBV_WC_SUCCESS) {
    const bool flushed = completion.status == IBV_WC_WR_FLUSH_ERR;
    on_error_(flushed ? Loss::Sign::kFlushed : Loss::Sign::kRequest,
              completion_problem(completion.status, "an RDMA transfer of the peer failed"));
    return;
  }
  const auto queue = std::find_if(queues_.begin(), queues_.end(), [&](const Queue& candidate) {
    return candidate.qp->qp_num == completion.qp_num;
  });
  ibv_recv_wr again{};
  ibv_recv_wr* bad = nullptr;
  const int error = queue == queues_.end() ? EINVAL : ibv_post_recv(queue->qp, &again, &bad);
  if (error != 0) {
    on_error_(Loss::Sign::kRequest,
              allocation_error(error, "posting an RDMA receive (ibv_post_recv)").context());
    return;
  }
  const uint32_t immediate = ntohl(completion.imm_data);
  if (immediate != 0) on_immediate_(immediate, completion.byte_len);
}

std::chrono::steady_clock::time_point BulkEngine::expire() {
  std::vector<Waiting> late;
  auto next = Clock::time_point::max();
  {
    MutexLock lock(mutex_);
    const auto now = Clock::now();
    const auto first = std::partition(waiting_.begin(), waiting_.end(),
                                      [now](const Waiting& w) { return w.deadline > now; });
    std::move(first, waiting_.end(), std::back_inserter(late));
    waiting_.erase(first, waiting_.end());
    for (const Waiting& request : waiting_) next = std::min(next, request.deadline);
  }
  for (const Waiting& request : late)
    request.done(not_found(static_cast<uint64_t>(request.region)));
  return next;
}

void BulkEngine::stop(const Status& why) {
  std::vector<Waiting> waiting;
  Outcomes outcomes;
  {
    MutexLock lock(mutex_);
    if (std::exchange(stopped_, true)) return;
    why_stopped_ = why;
    waiting.swap(waiting_);
    for (auto& transfer : failed_) outcomes.emplace_back(std::move(transfer), why);
    failed_.clear();
  }
  report(outcomes, {});
  pump();  // fails all operations that have not been posted
  for (const Waiting& request : waiting) request.done(why);
}

void BulkEngine::quiesce() {
  MutexLock lock(mutex_);
  while (posting_ != 0) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
}

bool BulkEngine::idle() {
  MutexLock lock(mutex_);
  return in_flight_.empty();
}

void BulkEngine::fail_in_flight() {
  Outcomes outcomes;
  std::vector<uint64_t> retired;
  {
    MutexLock lock(mutex_);
    while (!in_flight_.empty()) over_locked(*in_flight_.begin(), false, outcomes, retired);
  }
  report(outcomes, {});
}

}  // namespace rcuda::transport::verbs
