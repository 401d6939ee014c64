// WorkPage: a page of memory that reports a session to the daemon. The worker writes the work done,
// the memory held, the use of the client's fallback medium, the loss of the connection, the NCCL
// communicators, and the times of the last use, of the end by idle_time and of the session's end.
// The daemon writes only kept_free().
//
// The daemon makes the page and passes it on with the session. A worker may write any values, so
// the daemon trusts none of them: it reports them to people, and bounds those on which it acts.
// Threads: any, unless a function says otherwise; the values are atomics. Blocking: none. Errors:
// those of the system; kProtocol for memory that is not such a page.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/memory_file.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/messages/work.h"
#include "common/nccl/nccl_calls.h"

namespace rcuda::server {

class WorkPage {
 public:
  static constexpr uint32_t kDevices = 64;  // by the server's numbers

  // The memory's size is sealed, so no process can truncate it.
  static Result<WorkPage> make();
  static Result<WorkPage> open(UniqueFd memory);

  // The page's memory, to pass the page on.
  int descriptor() const { return memory_.get(); }
  // The layout of the memory as a text, for carried_layout().
  static std::string layout();

  void write(const wire::Work& work);
  wire::Work read() const;
  // Bytes that the session holds on a device now. Devices from kDevices on are ignored.
  void hold(uint32_t device, uint64_t bytes);
  uint64_t held(uint32_t device) const;
  // Bytes of a device that must stay free, because another session of the server is about to take
  // them. The daemon sets this number.
  void keep_free(uint32_t device, uint64_t bytes);
  uint64_t kept_free(uint32_t device) const;
  void set_fell_back() { page_->fell_back.store(true, std::memory_order_relaxed); }
  // When the session ends if it stays idle, in monotonic nanoseconds. kBusy: a command runs, or
  // there is a session_time but no idle_time. 0: there is neither, or the session has not begun.
  static constexpr uint64_t kBusy = ~uint64_t{0};
  void set_idle_end(uint64_t ns) { page_->idle_end.store(ns, std::memory_order_relaxed); }
  uint64_t idle_end() const { return page_->idle_end.load(std::memory_order_relaxed); }
  // When the worker last executed a command or saw work end, by the monotonic clock.
  void set_used_at(std::chrono::nanoseconds at) {
    page_->used_at.store(static_cast<uint64_t>(at.count()), std::memory_order_relaxed);
  }
  uint64_t used_at() const { return page_->used_at.load(std::memory_order_relaxed); }
  // When the connection to the client was lost, in monotonic nanoseconds; 0: it is not lost.
  // `counts`: losses() counts this loss.
  void set_lost_since(uint64_t ns, bool counts);
  uint64_t lost_since() const { return page_->lost_since.load(std::memory_order_relaxed); }
  uint32_t losses() const { return page_->losses.load(std::memory_order_relaxed); }
  bool fell_back() const { return page_->fell_back.load(std::memory_order_relaxed); }
  // When the session was over, in monotonic nanoseconds; 0: it is not over. After that, the
  // worker's process only has to end, and the driver frees the session's memory.
  void set_over_at(uint64_t ns) { page_->over_at.store(ns, std::memory_order_relaxed); }
  // Keeps the first value other than 0, so that a worker cannot change it. One thread only.
  uint64_t over_at() const {
    if (over_at_ == 0) over_at_ = page_->over_at.load(std::memory_order_relaxed);
    return over_at_;
  }
  // The NCCL communicators of which the session has a rank, by tags other than 0. Each join() of a
  // tag needs a leave(). Only one thread at a time may call join(), leave() and leave_all().
  static constexpr size_t kCommunicators = nccl::kMostCommunicators;
  void join(uint64_t tag) { replace_tag(0, tag); }
  void leave(uint64_t tag) { replace_tag(tag, 0); }
  void leave_all();
  std::vector<uint64_t> communicators() const;

 private:
  struct Page {
    std::array<std::atomic<uint64_t>, wire::kWorkNames.size()> counts;
    std::array<std::atomic<uint64_t>, kDevices> held;
    std::array<std::atomic<uint64_t>, kDevices> kept_free;
    std::array<std::atomic<uint64_t>, kCommunicators> communicators;
    std::atomic<uint32_t> used;  // the tags are in the first `used` elements
    std::atomic<uint64_t> idle_end;
    std::atomic<uint64_t> used_at;
    std::atomic<uint64_t> lost_since;
    std::atomic<uint64_t> over_at;
    std::atomic<uint32_t> losses;  // so far
    std::atomic<bool> fell_back;
  };
  WorkPage(UniqueFd memory, Mapped<Page> page)
      : memory_(std::move(memory)), page_(std::move(page)) {}
  void replace_tag(uint64_t old, uint64_t tag);

  UniqueFd memory_;
  Mapped<Page> page_;
  mutable uint64_t over_at_ = 0;
};

}  // namespace rcuda::server
