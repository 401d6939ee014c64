#include "server/executor/memory/region_puts.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>

#include "server/executor/memory/host_memory.h"

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
      acknowledges_(!link.traits().has_region_puts) {
  if (acknowledges_) return;
  std::ranges::fill(marks, std::byte{0});
  for (size_t place = marks.size() / sizeof(uint32_t); place-- > 0;) {
    free_places_.push_back(static_cast<uint32_t>(place));
  }
}

bool RegionPuts::puts_locked() const { return !over_ && !acknowledges_ && !names_.are_used(); }

bool RegionPuts::put(transport::RegionId region, uint64_t offset, transport::Bytes bytes) {
  if (bytes.size() > transport::kMaxRegionPut) return false;
  Status sent;
  {
    std::lock_guard lock(mutex_);
    if (!puts_locked()) return false;
    last_ = {region, offset};
    sent = link_.put_region(region, offset, bytes);
  }
  link_.flush();
  if (!sent.ok()) answers_.latch(not_moved(sent));
  return true;
}

bool RegionPuts::put_when_reached(const SessionStream& stream, transport::RegionId region,
                                  uint64_t offset, transport::Bytes bytes) {
  if (bytes.size() > transport::kMaxRegionPut || !driver_.cuStreamWriteValue32_v2) return false;
  Marked marked{0, 0, region, offset, bytes};
  {
    std::lock_guard lock(mutex_);
    if (!puts_locked() || free_places_.empty()) return false;
    marked.place = free_places_.back();
    free_places_.pop_back();
    if (++last_ticket_ == 0) ++last_ticket_;
    marked.ticket = last_ticket_;
    marked_.push_back(marked);
    waiting_.store(marked_.size(), std::memory_order_release);
  }
  // Page-locked memory has the same address in all contexts.
  const CUresult queued = driver_.cuStreamWriteValue32_v2(
      stream.handle, reinterpret_cast<CUdeviceptr>(marks_ + marked.place), marked.ticket, 0);
  if (queued != CUDA_SUCCESS) {
    reached(marked.ticket, queued);
    return false;
  }
  // If the stream fails, the mark never comes.
  completions_.add(stream, [self = shared_from_this(), ticket = marked.ticket](CUresult result) {
    self->reached(ticket, result);
  });
  return true;
}

bool RegionPuts::is_there(const Marked& marked) const {
  return marked.reached ||
         std::atomic_ref(marks_[marked.place]).load(std::memory_order_acquire) == marked.ticket;
}

void RegionPuts::reached(uint32_t ticket, CUresult result) {
  {
    std::lock_guard lock(mutex_);
    const auto marked = std::find_if(marked_.begin(), marked_.end(),
                                     [&](const Marked& each) { return each.ticket == ticket; });
    if (marked == marked_.end()) return;
    marked->reached = true;
    if (result != CUDA_SUCCESS) marked->region = transport::RegionId::kNone;
  }
  deliver();
}

void RegionPuts::deliver() {
  if (waiting_.load(std::memory_order_acquire) == 0) return;
  Status failed;
  {
    std::lock_guard lock(mutex_);
    std::erase_if(marked_, [&](const Marked& marked) {
      if (!is_there(marked)) return false;
      if (const Status sent = send_locked(marked); !sent.ok()) failed = sent;
      free_places_.push_back(marked.place);
      return true;
    });
    waiting_.store(marked_.size(), std::memory_order_release);
  }
  if (!failed.ok()) answers_.latch(not_moved(failed));
}

Status RegionPuts::send_locked(const Marked& marked) {
  if (over_ || marked.region == transport::RegionId::kNone) return {};
  last_ = {marked.region, marked.offset};
  return link_.put_region(marked.region, marked.offset, marked.bytes);
}

void RegionPuts::withdraw(transport::RegionId region) {
  deliver();
  std::lock_guard lock(mutex_);
  for (Marked& marked : marked_) {
    if (marked.region == region) marked.region = transport::RegionId::kNone;
  }
}

void RegionPuts::settle() {
  using Clock = std::chrono::steady_clock;
  for (const auto until = Clock::now() + std::chrono::seconds(1);
       waiting_.load(std::memory_order_acquire) != 0 && Clock::now() < until;
       std::this_thread::yield()) {
    deliver();
  }
}

void RegionPuts::begin_acknowledging() {
  settle();
  std::optional<std::pair<transport::RegionId, uint64_t>> last;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(acknowledges_, true)) return;
    last = last_;
  }
  if (!last) return;
  // A transfer happens after all puts, so its end is their acknowledgement.
  std::byte byte;
  std::promise<void> done;
  link_.read(last->first, last->second, &byte, 1, [&done](const Status&) { done.set_value(); });
  done.get_future().wait();
}

void RegionPuts::end() {
  std::lock_guard lock(mutex_);
  over_ = true;
}

}  // namespace rcuda::server
