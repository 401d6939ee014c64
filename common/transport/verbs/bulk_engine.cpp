#include "common/transport/verbs/bulk_engine.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/transport/verbs/device.h"

namespace rcuda::transport::verbs {
namespace {

// Large enough that a work request costs nothing beside its data, small enough to spread one
// transfer over several queue pairs. Never more than the port's largest message.
constexpr uint64_t kMostPieceBytes = 1u << 20;
constexpr size_t kMostRegions = 1u << 20;
constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

Status not_found(uint64_t region) {
  return {Code::kNotFound, "region " + std::to_string(region) + " of the peer does not exist"};
}

}  // namespace

void BulkEngine::start(ibv_pd* pd, std::vector<ibv_qp*> qps, ibv_cq* cq,
                       uint64_t max_message_bytes) {
  pd_ = pd;
  cq_ = cq;
  piece_bytes_ = std::min(kMostPieceBytes, max_message_bytes);
  for (ibv_qp* qp : qps) queues_.push_back({qp, 0});
}

Result<std::shared_ptr<Registration>> BulkEngine::add_local(void* base, size_t bytes) {
  auto registration = std::make_shared<Registration>();
  registration->base = reinterpret_cast<uintptr_t>(base);
  registration->bytes = bytes;
  registration->mr.reset(ibv_reg_mr(pd_, base, bytes, kAccess));
  if (!registration->mr) return registration_error(errno, bytes);
  std::lock_guard lock(mutex_);
  locals_[registration->base] = registration;
  return registration;
}

void BulkEngine::remove_local(const std::shared_ptr<Registration>& registration) {
  std::lock_guard lock(mutex_);
  const auto found = locals_.find(registration->base);
  if (found != locals_.end() && found->second == registration) locals_.erase(found);
}

std::shared_ptr<Registration> BulkEngine::find_local(const std::byte* local, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(local);
  auto found = locals_.upper_bound(address);
  if (found == locals_.begin()) return nullptr;
  const std::shared_ptr<Registration>& candidate = std::prev(found)->second;
  const uintptr_t within = address - candidate->base;
  const bool inside = within <= candidate->bytes && bytes <= candidate->bytes - within;
  return inside ? candidate : nullptr;
}

Status BulkEngine::add_remote(uint64_t id, uint64_t bytes, uint64_t address, uint64_t rkey) {
  std::vector<Waiting> ready;
  {
    std::lock_guard lock(mutex_);
    if (id <= highest_remote_ || bytes == 0 || remotes_.size() >= kMostRegions) {
      return {Code::kProtocol, "protocol violation: bad announcement of a region"};
    }
    highest_remote_ = id;
    remotes_[id] =
        std::make_shared<Remote>(Remote{id, bytes, address, static_cast<uint32_t>(rkey), 0, false});
    const auto first = std::partition(waiting_.begin(), waiting_.end(),
                                      [id](const Waiting& w) { return w.region > id; });
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
    std::lock_guard lock(mutex_);
    const auto found = remotes_.find(id);
    if (found == remotes_.end()) {
      return {Code::kProtocol, "protocol violation: a region was retired but not announced"};
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

bool BulkEngine::transfer(bool to_peer, uint64_t region, uint64_t offset, std::byte* local,
                          size_t bytes, std::chrono::milliseconds patience, TransferDone done) {
  if (bytes == 0) {
    done({});
    return false;
  }
  const auto deadline = patience.count() == 0 ? Clock::time_point::max() : Clock::now() + patience;
  Waiting request{to_peer, region, offset, local, bytes, deadline, std::move(done)};
  {
    std::lock_guard lock(mutex_);
    if (!stopped_ && region > highest_remote_) {
      waiting_.push_back(std::move(request));
      return true;
    }
  }
  if (Status status = begin(request); !status.ok()) request.done(status);
  return false;
}

Status BulkEngine::begin(const Waiting& request) {
  std::shared_ptr<Registration> registration;
  std::shared_ptr<Remote> remote;
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return why_stopped_;
    const auto found = remotes_.find(request.region);
    if (found == remotes_.end()) return not_found(request.region);
    remote = found->second;
    if (request.bytes > remote->bytes || request.offset > remote->bytes - request.bytes) {
      return {Code::kInvalidArgument, "transfer outside of the peer's region"};
    }
    registration = find_local(request.local, request.bytes);
  }
  const bool bounces = !registration && request.bytes <= kBounceUpTo;
  if (!registration && !bounces) {
    registration = std::make_shared<Registration>();
    registration->mr.reset(ibv_reg_mr(pd_, request.local, request.bytes, IBV_ACCESS_LOCAL_WRITE));
    if (!registration->mr) return registration_error(errno, request.bytes);
  }
  const uint64_t share = (request.bytes + queues_.size() - 1) / queues_.size();
  // Cutting below 64 KiB would cost more than a second queue pair gains.
  const uint64_t piece =
      std::clamp<uint64_t>(share, std::min<uint64_t>(64u << 10, piece_bytes_), piece_bytes_);
  const size_t pieces = (request.bytes + piece - 1) / piece;
  const auto counted = [this, bytes = request.bytes, done = request.done](const Status& status) {
    if (status.ok()) counters_.transfer_bytes.fetch_add(bytes, std::memory_order_relaxed);
    done(status);
  };
  const auto transfer = std::make_shared<Transfer>(pieces, counted);
  Outcomes outcomes;
  {
    std::lock_guard lock(mutex_);
    for (uint64_t at = 0; at < request.bytes; at += piece) {
      Operation operation;
      operation.to_peer = request.to_peer;
      operation.remote = remote;
      operation.offset = request.offset + at;
      operation.local = request.local + at;
      operation.bytes = static_cast<uint32_t>(std::min(piece, request.bytes - at));
      operation.registration = registration;
      operation.transfer = transfer;
      pending_.push_back(std::move(operation));
    }
    pump_locked(outcomes);
  }
  report(outcomes, {});
  return {};
}

bool BulkEngine::take_slot_locked(Operation& operation) {
  if (!slots_) {
    const size_t bytes = kSlots * kBounceUpTo;
    void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return false;
    slot_memory_ = Mapping(base, bytes);
    slots_ = std::make_shared<Registration>();
    slots_->mr.reset(ibv_reg_mr(pd_, base, bytes, IBV_ACCESS_LOCAL_WRITE));
    if (!slots_->mr) return false;
    for (size_t i = 0; i < kSlots; ++i) free_slots_.push_back(static_cast<int>(i));
  }
  if (free_slots_.empty()) return false;
  operation.slot = free_slots_.back();
  free_slots_.pop_back();
  return true;
}

void BulkEngine::pump_locked(Outcomes& outcomes) {
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
    if (queue->in_flight >= kDepth) return;
    if (!next.registration && !take_slot_locked(next)) {
      if (slots_ && slots_->mr) return;  // all in use
      outcomes.emplace_back(next.transfer, registration_error(errno, kSlots * kBounceUpTo));
      slots_.reset();
      pending_.pop_front();
      continue;
    }
    next.queue = static_cast<size_t>(queue - queues_.begin());
    auto* operation = new Operation(std::move(next));  // freed by over_locked()
    pending_.pop_front();
    in_flight_.insert(operation);
    ++operation->remote->in_flight;
    ++queue->in_flight;
    if (const int error = post_locked(operation); error != 0) {
      std::vector<uint64_t> retired;
      over_locked(operation, Status::from_errno(error, "ibv_post_send"), outcomes, retired);
    }
  }
}

int BulkEngine::post_locked(Operation* operation) {
  ibv_sge piece{reinterpret_cast<uint64_t>(operation->local), operation->bytes, 0};
  if (operation->registration) {
    piece.lkey = operation->registration->mr->lkey;
  } else {
    std::byte* slot = slot_memory_.data() + operation->slot * kBounceUpTo;
    if (operation->to_peer) {
      std::memcpy(slot, operation->local, operation->bytes);
      counters_.copied_bytes.fetch_add(operation->bytes, std::memory_order_relaxed);
    }
    piece.addr = reinterpret_cast<uint64_t>(slot);
    piece.lkey = slots_->mr->lkey;
  }
  ibv_send_wr request{};
  request.wr_id = reinterpret_cast<uint64_t>(operation);
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = operation->to_peer ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = operation->remote->address + operation->offset;
  request.wr.rdma.rkey = operation->remote->rkey;
  ibv_send_wr* bad = nullptr;
  counters_.work_requests.fetch_add(1, std::memory_order_relaxed);
  counters_.doorbells.fetch_add(1, std::memory_order_relaxed);
  return ibv_post_send(queues_[operation->queue].qp, &request, &bad);
}

void BulkEngine::over_locked(Operation* raw, const Status& status, Outcomes& outcomes,
                             std::vector<uint64_t>& retired) {
  const std::unique_ptr<Operation> operation(raw);
  in_flight_.erase(raw);
  --queues_[operation->queue].in_flight;
  if (operation->slot >= 0) {
    if (status.ok() && !operation->to_peer) {
      std::memcpy(operation->local, slot_memory_.data() + operation->slot * kBounceUpTo,
                  operation->bytes);
      counters_.copied_bytes.fetch_add(operation->bytes, std::memory_order_relaxed);
    }
    free_slots_.push_back(operation->slot);
  }
  if (--operation->remote->in_flight == 0 && operation->remote->retired) {
    retired.push_back(operation->remote->id);
  }
  outcomes.emplace_back(operation->transfer, status);
}

void BulkEngine::report(const Outcomes& outcomes, const std::vector<uint64_t>& retired) {
  for (const auto& [transfer, status] : outcomes) transfer->piece_done(status);
  for (const uint64_t region : retired) on_retired_(region);
}

void BulkEngine::poll() {
  Outcomes outcomes;
  std::vector<uint64_t> retired;
  std::string error;
  {
    std::lock_guard lock(mutex_);
    ibv_wc completions[16];
    int count;
    while ((count = ibv_poll_cq(cq_, static_cast<int>(std::size(completions)), completions)) > 0) {
      counters_.completions.fetch_add(count, std::memory_order_relaxed);
      for (const ibv_wc& completion : std::span(completions, count)) {
        auto* operation = reinterpret_cast<Operation*>(completion.wr_id);
        Status status;
        if (completion.status != IBV_WC_SUCCESS) {
          const std::string why =
              std::string("RDMA transfer failed: ") + ibv_wc_status_str(completion.status);
          if (error.empty() && completion.status != IBV_WC_WR_FLUSH_ERR) error = why;
          status = stopped_ ? why_stopped_ : Status(Code::kUnavailable, why);
        }
        over_locked(operation, status, outcomes, retired);
      }
    }
    pump_locked(outcomes);
  }
  if (!error.empty()) on_error_(error);
  report(outcomes, retired);
}

std::chrono::steady_clock::time_point BulkEngine::expire() {
  std::vector<Waiting> late;
  auto next = Clock::time_point::max();
  {
    std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    const auto first = std::partition(waiting_.begin(), waiting_.end(),
                                      [now](const Waiting& w) { return w.deadline > now; });
    std::move(first, waiting_.end(), std::back_inserter(late));
    waiting_.erase(first, waiting_.end());
    for (const Waiting& request : waiting_) next = std::min(next, request.deadline);
  }
  for (const Waiting& request : late) request.done(not_found(request.region));
  return next;
}

void BulkEngine::stop(const Status& why) {
  Outcomes outcomes;
  std::vector<Waiting> waiting;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(stopped_, true)) return;
    why_stopped_ = why;
    waiting.swap(waiting_);
    pump_locked(outcomes);
  }
  report(outcomes, {});
  for (const Waiting& request : waiting) request.done(why);
}

bool BulkEngine::idle() {
  std::lock_guard lock(mutex_);
  return in_flight_.empty();
}

void BulkEngine::fail_in_flight() {
  Outcomes outcomes;
  std::vector<uint64_t> retired;
  {
    std::lock_guard lock(mutex_);
    while (!in_flight_.empty()) over_locked(*in_flight_.begin(), why_stopped_, outcomes, retired);
  }
  report(outcomes, {});
}

}  // namespace rcuda::transport::verbs
