#include "common/transport/verbs/put_queue.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include <arpa/inet.h>

#include "common/base/units.h"
#include "common/transport/verbs/errors.h"

namespace rcuda::transport::verbs {

Status PutQueue::open(ibv_pd* pd) {
  staging_ = Mapping::anonymous(kStagingBytes);
  if (!staging_) {
    return allocation_error(errno, "allocating " + exact_bytes_text(kStagingBytes) +
                                       " of staging memory for RDMA writes");
  }
  staging_mr_.reset(ibv_reg_mr(pd, staging_.data(), kStagingBytes, IBV_ACCESS_LOCAL_WRITE));
  if (!staging_mr_) return registration_error(errno, kStagingBytes);
  MutexLock lock(mutex_);
  gathered_.reserve(kDepth);
  posting_.reserve(kDepth);
  return {};
}

void PutQueue::start(ibv_qp* qp, ibv_cq* cq, uint32_t inline_bytes, Target window) {
  qp_ = qp;
  cq_ = cq;
  inline_bytes_ = std::min(inline_bytes, kInlineBytes);
  window_ = window;
}

void PutQueue::stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
}

void PutQueue::quiesce() {
  MutexLock lock(mutex_);
  stopped_ = true;
  while (busy_) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
}

void PutQueue::poll_locked() {
  ibv_wc completions[16];
  int count;
  while ((count = ibv_poll_cq(cq_, static_cast<int>(std::size(completions)), completions)) > 0) {
    counters_.completions.fetch_add(count, std::memory_order_relaxed);
    for (const ibv_wc& completion : std::span(completions, count)) {
      if (completion.status == IBV_WC_SUCCESS) {
        // The queue is ordered: this completion confirms all earlier requests.
        confirmed_ = completion.wr_id;
        freed_ = staged_by_[completion.wr_id % kDepth];
        continue;
      }
      const bool flushed = completion.status == IBV_WC_WR_FLUSH_ERR;
      const auto sign = flushed ? Loss::Sign::kFlushed : Loss::Sign::kRequest;
      if (sign > sign_) {
        sign_ = sign;
        error_ = completion_problem(completion.status, "an RDMA write to the peer failed");
      }
    }
  }
}

bool PutQueue::poll() {
  Loss::Sign sign;
  std::string error;
  bool confirmed;
  {
    MutexLock lock(mutex_);
    if (stopped_ || cq_ == nullptr) return true;
    poll_locked();
    sign = sign_;
    error = error_;
    confirmed = confirmed_ >= last_signal_;
  }
  if (sign != Loss::Sign::kNone) on_error_(sign, error);
  return confirmed;
}

Status PutQueue::wait_for_room(MutexLock& lock, size_t staged_bytes, Turn turn) {
  while (true) {
    if (stopped_) return {Code::kUnavailable, "the connection over verbs has ended"};
    const bool may = turn == Turn::kAnytime || !splitting_;
    const bool room =
        may && added_ - confirmed_ < kDepth && staged_ + staged_bytes - freed_ <= kStagingBytes;
    if (room) return {};
    poll_locked();
    if (sign_ != Loss::Sign::kNone) {
      const Loss::Sign sign = sign_;
      const std::string error = error_;
      lock.unlock();
      on_error_(sign, error);
      lock.lock();
      return {Code::kUnavailable, error};
    }
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
}

// Returns contiguous space. The caller has waited for room for twice the size, because the end of
// the ring is skipped if the bytes do not fit there.
std::byte* PutQueue::stage(size_t bytes) {
  const size_t at = staged_ % kStagingBytes;
  if (bytes > kStagingBytes - at) staged_ += kStagingBytes - at;
  std::byte* place = staging_.data() + staged_ % kStagingBytes;
  staged_ += bytes;
  return place;
}

PutQueue::Entry& PutQueue::add(const Target& at, uint32_t bytes) {
  Entry& entry = gathered_.emplace_back();
  entry.request = {};
  entry.request.opcode = IBV_WR_RDMA_WRITE;
  entry.request.wr.rdma.remote_addr = at.address;
  entry.request.wr.rdma.rkey = at.rkey;
  entry.piece = {0, bytes, staging_mr_->lkey};
  return entry;
}

// Returns the buffer that holds the entry's bytes until they are sent.
std::byte* PutQueue::room_in(Entry& entry) {
  const bool is_inline = entry.piece.length <= inline_bytes_;
  std::byte* const room = is_inline ? entry.data : stage(entry.piece.length);
  entry.piece.addr = reinterpret_cast<uint64_t>(room);
  if (is_inline) entry.request.send_flags |= IBV_SEND_INLINE;
  return room;
}

void PutQueue::finish(Entry& entry, bool force_signal) {
  ++added_;
  ++unsignalled_;
  entry.request.wr_id = added_;
  staged_by_[added_ % kDepth] = staged_;
  if (force_signal || unsignalled_ >= kDepth / 4 ||
      staged_ - staged_at_signal_ >= kStagingBytes / 4) {
    entry.request.send_flags |= IBV_SEND_SIGNALED;
    unsignalled_ = 0;
    staged_at_signal_ = staged_;
  }
}

Status PutQueue::put_into(const Target& place, Bytes bytes, uint64_t* number) {
  const auto size = static_cast<uint32_t>(bytes.size());
  MutexLock lock(mutex_);
  RCUDA_RETURN_IF_ERROR(
      wait_for_room(lock, size <= inline_bytes_ ? 0 : 2 * bytes.size(), Turn::kNotWithinAPut));
  Entry& entry = add(place, size);
  std::memcpy(room_in(entry), bytes.data(), bytes.size());
  finish(entry, true);
  *number = added_;
  return post(lock);
}

bool PutQueue::confirmed(uint64_t number) {
  (void)poll();  // records errors
  MutexLock lock(mutex_);
  return confirmed_ >= number || stopped_ || sign_ != Loss::Sign::kNone;
}

Status PutQueue::put(uint64_t offset, std::span<const Bytes> pieces, size_t total,
                     const std::function<bool()>& wakes, uint32_t immediate) {
  MutexLock lock(mutex_);
  Status status = add_put(lock, offset, pieces, total, wakes, immediate);
  if (!status.ok()) return status;
  return post(lock);
}

Status PutQueue::add_put(MutexLock& lock, uint64_t offset, std::span<const Bytes> pieces,
                         size_t total, const std::function<bool()>& wakes, uint32_t immediate) {
  // begin_at() sets splitting_. The destructor clears it at the end of add_put(), with the lock
  // held.
  struct Split {
    bool* flag = nullptr;
    void begin_at(bool* splitting) { *(flag = splitting) = true; }
    ~Split() {
      if (flag) *flag = false;
    }
  } split;
  size_t within = 0;  // offset in the first of `pieces`
  for (size_t done = 0; done < total;) {
    const auto bytes = static_cast<uint32_t>(std::min(kMaxStaged, total - done));
    const Turn turn = done == 0 ? Turn::kNotWithinAPut : Turn::kAnytime;
    RCUDA_RETURN_IF_ERROR(wait_for_room(lock, bytes <= inline_bytes_ ? 0 : 2 * bytes, turn));
    if (bytes < total) split.begin_at(&splitting_);
    Entry& entry = add({window_.address + offset + done, window_.rkey}, bytes);
    std::byte* const place = room_in(entry);
    for (size_t copied = 0; copied < bytes;) {
      const Bytes rest = pieces.front().subspan(within);
      const size_t count = std::min(rest.size(), bytes - copied);
      if (count != 0) std::memcpy(place + copied, rest.data(), count);
      copied += count;
      within += count;
      if (count == rest.size()) {
        pieces = pieces.subspan(1);
        within = 0;
      }
    }
    done += bytes;
    if (done == total && wakes()) {
      entry.request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
      entry.request.imm_data = htonl(immediate);
    }
    finish(entry, false);
    if (done != total) RCUDA_RETURN_IF_ERROR(post(lock));
  }
  return {};
}

Status PutQueue::signal(uint32_t immediate, const std::function<void()>& before) {
  MutexLock lock(mutex_);
  RCUDA_RETURN_IF_ERROR(wait_for_room(lock, 0, Turn::kAnytime));
  before();
  Entry& entry = add(window_, 0);
  entry.request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  entry.request.imm_data = htonl(immediate);
  finish(entry, true);
  last_signal_ = added_;
  return post(lock);
}

// Posts the gathered requests. If another thread is posting, that thread posts them too.
Status PutQueue::post(MutexLock& lock) {
  if (busy_) return {};
  busy_ = true;
  int error = 0;
  while (error == 0 && !stopped_ && !gathered_.empty()) {
    std::swap(gathered_, posting_);
    lock.unlock();
    for (size_t i = 0; i < posting_.size(); ++i) {
      Entry& entry = posting_[i];
      // The list is complete now, so each request can point to the next one.
      if (entry.request.send_flags & IBV_SEND_INLINE) {
        entry.piece.addr = reinterpret_cast<uint64_t>(entry.data);
      }
      entry.request.sg_list = &entry.piece;
      entry.request.num_sge = entry.piece.length == 0 ? 0 : 1;
      entry.request.next = i + 1 < posting_.size() ? &posting_[i + 1].request : nullptr;
    }
    // Counted before the post, so that a request is counted before the peer can see its effect.
    counters_.work_requests.fetch_add(posting_.size(), std::memory_order_relaxed);
    counters_.doorbells.fetch_add(1, std::memory_order_relaxed);
    ibv_send_wr* bad = nullptr;
    error = ibv_post_send(qp_, &posting_.front().request, &bad);
    posting_.clear();
    lock.lock();
  }
  busy_ = false;
  if (error == 0) return {};
  const std::string why =
      allocation_error(error, "posting an RDMA write (ibv_post_send)").context();
  lock.unlock();
  on_error_(Loss::Sign::kRequest, why);
  lock.lock();
  return {Code::kUnavailable, why};
}

}  // namespace rcuda::transport::verbs
