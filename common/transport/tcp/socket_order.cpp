#include "common/transport/tcp/socket_order.h"

#include "common/base/cpu_pause.h"

namespace rcuda::transport {

uint32_t SentOrder::add_put() {
  recent_.clear();
  return all_wait_ = ++sent_;
}

SentOrder::Write SentOrder::add_write(RegionId region, uint64_t begin, uint64_t end) {
  if (recent_.size() == kRecent) {
    all_wait_ = recent_.front().sent;
    recent_.pop_front();
  }
  uint32_t after = all_wait_;
  for (const Recent& other : recent_) {  // the oldest first
    if (other.region == region && other.begin < end && begin < other.end) after = other.sent;
  }
  recent_.push_back({region, begin, end, ++sent_});
  if (++number_ == 0) ++number_;
  return {number_, after, sent_};
}

void SocketOrder::count_put() {
  MutexLock lock(mutex_);
  puts_.fetch_add(1, std::memory_order_release);
  came_.notify_all();
}

bool SocketOrder::wait_for_puts(uint32_t count) {
  const auto came = [&] {
    return static_cast<int32_t>(puts_.load(std::memory_order_acquire) - count) >= 0;
  };
  if (came()) return true;
  MutexLock lock(mutex_);
  came_.wait(lock, [&]() RCUDA_REQUIRES(mutex_) { return stopped_ || came(); });
  return came();
}

bool SocketOrder::count_piece(uint32_t number, uint64_t bytes) {
  MutexLock lock(mutex_);
  if (writes_.size() >= kMostWrites && !writes_.contains(number)) return false;
  writes_[number] += bytes;
  pieces_.fetch_add(1, std::memory_order_release);
  came_.notify_all();
  return true;
}

bool SocketOrder::take_locked(uint32_t number, uint64_t bytes) {
  const auto found = writes_.find(number);
  if (found == writes_.end() || found->second < bytes) return false;
  writes_.erase(found);
  return true;
}

bool SocketOrder::wait_for_write(uint32_t number, uint64_t bytes, std::chrono::nanoseconds spin,
                                 Clock::time_point until) {
  const Clock::time_point sleep_at = Clock::now() + spin;
  MutexLock lock(mutex_);
  while (!take_locked(number, bytes)) {
    if (stopped_) return false;
    const uint32_t seen = pieces_;
    lock.unlock();
    const auto news = [&] { return pieces_.load(std::memory_order_acquire) != seen || stopped_; };
    while (!news() && Clock::now() < sleep_at) cpu_pause();
    lock.lock();
    if (!came_.wait_until(lock, until, news)) return take_locked(number, bytes);
  }
  return true;
}

void SocketOrder::stop_waiting() {
  MutexLock lock(mutex_);
  stopped_ = true;
  came_.notify_all();
}

}  // namespace rcuda::transport
