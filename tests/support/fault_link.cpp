#include "tests/support/fault_link.h"

#include <algorithm>

namespace rcuda::test {

using transport::Bytes;
using transport::Company;
using transport::RegionId;
using transport::TransferDone;
using transport::Wake;

FaultLink::FaultLink(std::unique_ptr<transport::Link> inner, FaultPlan plan)
    : inner_(std::move(inner)), plan_(std::move(plan)), random_(plan_.seed) {
  thread_ = std::thread([this] { deliver(); });
}

FaultLink::~FaultLink() {
  close();
  thread_.join();
}

void FaultLink::close() {
  std::unique_lock lock(mutex_);
  // As every medium, delivers accepted puts before the inner Link closes.
  changed_.wait(lock, [this] { return ending_ || puts_.empty() || !inner_->status().ok(); });
  ending_ = true;
  changed_.notify_all();
  lock.unlock();
  inner_->close();
}

std::chrono::microseconds FaultLink::draw_locked(std::chrono::microseconds most) {
  if (std::uniform_real_distribution<>(0, 1)(random_) >= plan_.delayed_share) return {};
  return std::chrono::microseconds(
      std::uniform_int_distribution<int64_t>(0, most.count())(random_));
}

bool FaultLink::count_operation_locked() {
  return ++operations_ == plan_.break_after && plan_.cut != nullptr;
}

Status FaultLink::put(uint64_t offset, std::span<const Bytes> pieces, Wake wake) {
  size_t total = 0;
  for (Bytes piece : pieces) total += piece.size();
  if (total < 8 || total % 8 != 0 || offset % 8 != 0 || total > peer_window_bytes() ||
      offset > peer_window_bytes() - total) {
    return inner_->put(offset, pieces, wake);  // the inner Link refuses it
  }
  if (before_put_) before_put_();
  LatePut late{offset, {}, wake, {}};
  late.bytes.reserve(total);
  for (Bytes piece : pieces) late.bytes.insert(late.bytes.end(), piece.begin(), piece.end());

  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ending_ || puts_.size() < kMaxQueuedPuts; });
  if (Status status = inner_->status(); !status.ok()) return status;
  if (count_operation_locked()) plan_.cut();
  late.due = Clock::now() + draw_locked(plan_.max_put_delay);
  puts_.push_back(std::move(late));
  changed_.notify_all();
  const bool spurious = std::uniform_real_distribution<>(0, 1)(random_) < plan_.spurious_share;
  lock.unlock();
  if (spurious) inner_->interrupt();
  return {};
}

Status FaultLink::put_region(RegionId region, uint64_t offset, Bytes bytes) {
  if (!traits().has_region_puts) return Link::put_region(region, offset, bytes);
  // The bytes must arrive after earlier puts and before later transfers. So this call waits until
  // the earlier puts are delivered, and is not delayed itself.
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ending_ || puts_.empty(); });
  return inner_->put_region(region, offset, bytes);
}

Status FaultLink::wait(const std::function<bool()>& ready,
                       std::chrono::steady_clock::time_point deadline,
                       transport::WokenBy woken_by) {
  return inner_->wait(ready, deadline, woken_by);
}

Result<transport::Region> FaultLink::expose(void* base, size_t bytes, int backing,
                                            uint64_t backing_offset) {
  return inner_->expose(base, bytes, backing, backing_offset);
}

Result<void*> FaultLink::map(RegionId region, size_t bytes, void* address) {
  return inner_->map(region, bytes, address);
}

void FaultLink::write(RegionId region, uint64_t offset, const void* local, size_t bytes,
                      TransferDone done) {
  begin_later([=, this] { inner_->write(region, offset, local, bytes, done); });
}

void FaultLink::read(RegionId region, uint64_t offset, void* local, size_t bytes,
                     TransferDone done) {
  begin_later([=, this] { inner_->read(region, offset, local, bytes, done); });
}

void FaultLink::write_with_immediate(RegionId region, uint64_t offset, const void* local,
                                     size_t bytes, uint32_t immediate, Company company,
                                     TransferDone done) {
  begin_later([=, this] {
    inner_->write_with_immediate(region, offset, local, bytes, immediate, company, done);
  });
}

void FaultLink::write_in_order(RegionId region, uint64_t offset, const void* local, size_t bytes,
                               TransferDone done) {
  if (!traits().orders_writes) {
    return Link::write_in_order(region, offset, local, bytes, std::move(done));
  }
  // As in put_region(), waits until the earlier puts are delivered.
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ending_ || puts_.empty(); });
  inner_->write_in_order(region, offset, local, bytes, std::move(done));
}

void FaultLink::begin_later(std::function<void()> begin) {
  if (before_put_) before_put_();
  {
    std::lock_guard lock(mutex_);
    if (!ending_) {
      if (count_operation_locked()) plan_.cut();
      transfers_.push_back(
          {std::move(begin), Clock::now() + draw_locked(plan_.max_transfer_delay)});
      changed_.notify_all();
      return;
    }
  }
  begin();  // the inner Link is closed, so the transfer fails
}

void FaultLink::begin_due(std::unique_lock<std::mutex>& lock) {
  const Clock::time_point now = Clock::now();
  for (size_t i = 0; i < transfers_.size();) {
    if (!ending_ && transfers_[i].due > now) {
      ++i;
      continue;
    }
    const std::function<void()> begin = std::move(transfers_[i].begin);
    transfers_.erase(transfers_.begin() + static_cast<ptrdiff_t>(i));
    lock.unlock();
    begin();
    lock.lock();
    i = 0;
  }
}

void FaultLink::deliver() {
  std::unique_lock lock(mutex_);
  while (true) {
    begin_due(lock);
    if (ending_ && transfers_.empty()) return;
    if (!puts_.empty() && puts_.front().due <= Clock::now()) {
      const LatePut put = std::move(puts_.front());
      lock.unlock();
      const Bytes bytes(put.bytes);
      // If this fails, the next put() reports the error.
      (void)inner_->put(put.offset, std::span(&bytes, 1), put.wake);
      lock.lock();
      puts_.pop_front();
      changed_.notify_all();
      continue;
    }
    Clock::time_point next = Clock::now() + std::chrono::seconds(1);
    if (!puts_.empty()) next = std::min(next, puts_.front().due);
    for (const LateTransfer& transfer : transfers_) next = std::min(next, transfer.due);
    changed_.wait_until(lock, next);
  }
}

}  // namespace rcuda::test
