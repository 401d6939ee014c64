#include "server/executor/host_memory/region_puts.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "server/executor/host_memory/host_memory.h"

namespace rcuda::server {

RegionPuts::RegionPuts(const api::DriverTable& driver, transport::Link& link, Answers& answers,
                       Completions& completions, const ExportedNames& names,
                       std::span<std::byte> marks)
    : driver_(driver),
      link_(link),
      answers_(answers),
      completions_(completions),
      names_(names),
      marks_(reinterpret_cast<uint32_t*>(marks.data())),
      can_put_(link.traits().has_region_puts) {
  if (!can_put_) return;
  for (size_t place = marks.size() / sizeof(uint32_t); place-- > 0;) {
    free_places_.push_back(static_cast<uint32_t>(place));
  }
}

bool RegionPuts::puts_locked() const { return can_put_ && !over_ && !names_.are_used(); }

bool RegionPuts::put(transport::RegionId region, uint64_t offset, transport::Bytes bytes) {
  if (bytes.size() > kMostBytes) return false;
  deliver();  // bytes of earlier copies come first
  Status sent;
  {
    MutexLock lock(mutex_);
    if (!puts_locked()) return false;
    sent = put_locked(region, offset, bytes);
    if (sent.ok()) known_.insert(region);
  }
  link_.flush();
  if (!sent.ok()) answers_.latch(not_moved(sent));
  return true;
}

bool RegionPuts::takes(uint64_t bytes) const {
  if (bytes <= kMostBytes) return true;
  return link_.traits().orders_writes &&
         bytes + in_order_.load(std::memory_order_acquire) <= kMostInOrder;
}

bool RegionPuts::put_when_reached(const SessionStream& stream, transport::RegionId region,
                                  uint64_t offset, transport::Bytes bytes) {
  if (!takes(bytes.size())) return false;
  Marked marked{0, 0, stream.key, region, offset, bytes};
  {
    MutexLock lock(mutex_);
    if (!puts_locked() || !known_.contains(region)) return false;
    if (!take_place_locked(stream.key, &marked.place)) return false;
    if (++last_ticket_ == 0) ++last_ticket_;
    marked.ticket = last_ticket_;
    marked_.push_back(marked);
    waiting_.store(marked_.size(), std::memory_order_release);
    if (marked.in_order()) in_order_ += bytes.size();
  }
  // Page-locked memory has the same address in all contexts.
  const CUresult queued = driver_.cuStreamWriteValue32_v2(
      stream.handle, reinterpret_cast<CUdeviceptr>(marks_ + marked.place), marked.ticket, 0);
  if (queued != CUDA_SUCCESS) {
    drop(marked.ticket);
    return false;
  }
  // If the stream fails, the GPU never writes the word. Then reached() drops the copy.
  completions_.add(stream, [self = shared_from_this(), ticket = marked.ticket](CUresult result) {
    self->reached(ticket, result);
  });
  return true;
}

// Returns false if all words are in use by other streams.
bool RegionPuts::take_place_locked(uint64_t stream, uint32_t* index) {
  auto known = places_.find(stream);
  if (known == places_.end()) {
    if (free_places_.empty()) return false;
    known = places_.emplace(stream, Place{free_places_.back(), 0}).first;
    free_places_.pop_back();
    std::atomic_ref(marks_[known->second.index]).store(last_ticket_);
  }
  ++known->second.copies;
  *index = known->second.index;
  return true;
}

void RegionPuts::release_place_locked(const Marked& marked) {
  const auto known = places_.find(marked.stream);
  if (--known->second.copies != 0) return;
  free_places_.push_back(known->second.index);
  places_.erase(known);
}

// The word has the ticket of the stream's latest copy that the GPU has reached. Until the GPU
// reaches the first copy, the word has a lower ticket (take_place_locked()).
bool RegionPuts::is_there(const Marked& marked) const {
  const uint32_t written = std::atomic_ref(marks_[marked.place]).load(std::memory_order_acquire);
  return static_cast<int32_t>(written - marked.ticket) >= 0;
}

void RegionPuts::drop(uint32_t ticket) {
  MutexLock lock(mutex_);
  std::erase_if(marked_, [&](const Marked& marked) RCUDA_REQUIRES(mutex_) {
    if (marked.ticket != ticket) return false;
    release_place_locked(marked);
    if (marked.in_order()) in_order_ -= marked.bytes.size();
    return true;
  });
  waiting_.store(marked_.size(), std::memory_order_release);
}

void RegionPuts::reached(uint32_t ticket, CUresult result) {
  deliver();
  // After CUDA_ERROR_OUT_OF_MEMORY the copy is kept: only the event could not be made, and the GPU
  // still writes the word.
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) drop(ticket);
  Status failed;
  {
    MutexLock lock(mutex_);
    failed = std::exchange(failed_, Status());
  }
  if (!failed.ok()) answers_.latch(not_moved(failed));
}

// Must not latch an error: every put of the Link calls deliver(), also the put in Answers::latch(),
// which holds the lock of latch().
void RegionPuts::deliver() {
  if (waiting_.load(std::memory_order_acquire) == 0) return;
  MutexLock lock(mutex_);
  std::erase_if(marked_, [&](const Marked& marked) RCUDA_REQUIRES(mutex_) {
    if (!is_there(marked)) return false;
    send_locked(marked);
    release_place_locked(marked);
    return true;
  });
  waiting_.store(marked_.size(), std::memory_order_release);
}

void RegionPuts::send_locked(const Marked& marked) {
  if (over_ || marked.region == transport::RegionId::kNone) {
    if (marked.in_order()) in_order_ -= marked.bytes.size();
    return;
  }
  if (marked.in_order()) return write_locked(marked);
  Status sent = put_locked(marked.region, marked.offset, marked.bytes);
  if (!sent.ok()) failed_ = std::move(sent);
  needs_flush_.store(true, std::memory_order_release);
}

void RegionPuts::write_locked(const Marked& marked) {
  last_ = {marked.region, marked.offset};
  ++puts_;
  uint64_t number;
  {
    MutexLock lock(sending_mutex_);
    number = ++last_sending_;
    sending_.emplace(number, marked.bytes);
  }
  // The error is ignored: only a lost Link fails the write, and that ends the session.
  const auto done = [self = shared_from_this(), number](const Status&) {
    MutexLock lock(self->sending_mutex_);
    const auto sent = self->sending_.find(number);
    self->in_order_ -= sent->second.size();
    self->sending_.erase(sent);
    self->sent_.notify_all();
  };
  link_.write_in_order(marked.region, marked.offset, marked.bytes.data(), marked.bytes.size(),
                       done);
  needs_flush_.store(true, std::memory_order_release);
}

void RegionPuts::await_sent() {
  MutexLock lock(sending_mutex_);
  if (sending_.empty()) return;  // always after end()
  const uint64_t last = last_sending_;
  lock.unlock();
  link_.flush();  // the client may delay these writes until it has all earlier puts
  lock.lock();
  sent_.wait(lock, [this, last]() RCUDA_REQUIRES(sending_mutex_) {
    return sending_.empty() || sending_.begin()->first > last;
  });
}

void RegionPuts::deliver_all() {
  deliver();
  await_sent();
}

void RegionPuts::know(transport::RegionId region) {
  MutexLock lock(mutex_);
  if (!over_) known_.insert(region);
}

Status RegionPuts::put_locked(transport::RegionId region, uint64_t offset, transport::Bytes bytes) {
  last_ = {region, offset};
  ++puts_;
  while (!bytes.empty()) {
    const transport::Bytes piece = bytes.first(std::min(bytes.size(), transport::kMaxRegionPut));
    RCUDA_RETURN_IF_ERROR(link_.put_region(region, offset, piece));
    offset += piece.size();
    bytes = bytes.subspan(piece.size());
  }
  return {};
}

void RegionPuts::flush() {
  if (needs_flush_.load(std::memory_order_acquire) && needs_flush_.exchange(false)) link_.flush();
}

bool RegionPuts::overlaps(uint64_t address, uint64_t bytes) {
  deliver();
  if (waiting_.load(std::memory_order_acquire) == 0 &&
      in_order_.load(std::memory_order_acquire) == 0) {
    return false;
  }
  const auto overlap = [&](transport::Bytes others) {
    const auto first = reinterpret_cast<uint64_t>(others.data());
    return first < address + bytes && address < first + others.size();
  };
  // Both locks are held, because bytes move from marked_ to sending_.
  MutexLock lock(mutex_);
  MutexLock sending(sending_mutex_);
  return std::ranges::any_of(marked_, overlap, &Marked::bytes) ||
         std::ranges::any_of(sending_, [&](const auto& sent) { return overlap(sent.second); });
}

void RegionPuts::withdraw(transport::RegionId region) {
  deliver();
  MutexLock lock(mutex_);
  known_.erase(region);
  for (Marked& marked : marked_) {
    if (marked.region == region) marked.region = transport::RegionId::kNone;
  }
  lock.unlock();
  await_sent();
}

void RegionPuts::await_marks() {
  using Clock = std::chrono::steady_clock;
  for (const auto until = Clock::now() + std::chrono::seconds(1);
       waiting_.load(std::memory_order_acquire) != 0 && Clock::now() < until;
       std::this_thread::yield()) {
    deliver();
  }
}

bool RegionPuts::client_has(uint64_t* number) {
  if (*number == 0) {
    deliver();
    MutexLock lock(mutex_);
    *number = puts_ + 1;
  }
  if (arrived_.load(std::memory_order_acquire) + 1 >= *number) return true;
  if (is_asking_.exchange(true)) return false;
  MutexLock lock(mutex_);
  if (over_) return true;
  const auto [region, offset] = *last_;
  const uint64_t puts = puts_;
  lock.unlock();
  // A transfer happens after earlier puts into regions (Link::put_region()), so its end
  // acknowledges them. A failure needs no handling: the region has ended after these puts, or the
  // Link is broken.
  link_.read(region, offset, &probe_, 1, [self = shared_from_this(), puts](const Status&) {
    self->arrived_.store(puts, std::memory_order_release);
    self->is_asking_.store(false);
  });
  return false;
}

void RegionPuts::end() {
  {
    MutexLock lock(mutex_);
    over_ = true;
  }
  await_sent();
}

}  // namespace rcuda::server
