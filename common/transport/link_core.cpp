#include "common/transport/link_core.h"

#include <algorithm>

#include "common/base/log.h"
#include "common/base/units.h"

namespace rcuda::transport {

Status check_window_bytes(uint64_t bytes, const char* whose) {
  if (bytes >= 4096 && bytes <= kMaxWindowBytes && bytes % 8 == 0) return {};
  return {Code::kInvalidArgument, std::string(whose) + " window of " + bytes_text(bytes) +
                                      ": use a multiple of 8 from 4 KiB to 1 GiB"};
}

std::chrono::milliseconds heartbeat_interval(uint32_t timeout_ms) {
  constexpr uint32_t kMin = 10;
  return std::chrono::milliseconds(timeout_ms == 0 ? 0 : std::max(timeout_ms / 4, kMin));
}

std::string given_up(uint64_t limit_ms) {
  return "the peer ended the session because this process was silent for " +
         time_text(std::chrono::milliseconds(limit_ms)) +
         ", for example because it was stopped (Ctrl-Z, a debugger); a server's limit is "
         "RCUDA_SERVER_PEER_TIMEOUT";
}

Status LinkCore::wait(const std::function<bool()>& ready,
                      std::chrono::steady_clock::time_point deadline, WokenBy woken_by) {
  bool satisfied = false;
  const auto look = [&] {
    // In this order: the peer's last put may arrive between the two.
    const bool over = broken();
    satisfied = ready();
    if (!satisfied && !over) before_sleep();
    return satisfied || over;
  };
  const bool apart = separates_answers_ && woken_by == WokenBy::kNotAnswers;
  const bool woken = (apart ? elsewhere_ : doorbell_).sleep(look, deadline);
  if (satisfied) return {};
  if (woken) return status();
  return {Code::kTimeout, "waiting for the peer"};
}

void LinkCore::interrupt() {
  doorbell_.ring_always();
  if (separates_answers_) elsewhere_.ring_always();
}

Status LinkCore::status() const {
  if (!broken()) return {};
  MutexLock lock(status_mutex_);
  return status_;
}

void LinkCore::fail(End end, const std::string& why) {
  {
    MutexLock lock(status_mutex_);
    if (broken_.load(std::memory_order_relaxed)) return;
    status_ = Status(Code::kUnavailable, why);
    broken_.store(true, std::memory_order_release);
  }
  if (end == End::kLost) RCUDA_WARN("%s link: %s", medium(), why.c_str());
  on_broken();
  interrupt();
}

void LinkCore::on_immediate(ImmediateArrived arrived) {
  MutexLock lock(immediate_mutex_);
  on_immediate_ = std::move(arrived);
}

void LinkCore::immediate_arrived(uint32_t immediate, uint64_t bytes) {
  MutexLock lock(immediate_mutex_);
  if (on_immediate_) on_immediate_(immediate, bytes);
}

Status LinkCore::check_put(uint64_t offset, size_t pieces, size_t total,
                           size_t peer_window_bytes) const {
  if (broken()) [[unlikely]]
    return status();
  if (pieces > kMaxPutPieces || total < 8 || total % 8 != 0 || offset % 8 != 0 ||
      total > peer_window_bytes || offset > peer_window_bytes - total) [[unlikely]] {
    return {Code::kInvalidArgument, "invalid put of " + std::to_string(total) + " bytes at " +
                                        std::to_string(offset) + " of a window of " +
                                        std::to_string(peer_window_bytes)};
  }
  return {};
}

Result<Region> LinkCore::expose_device(void*, size_t, const DeviceMemory&) {
  return Status{Code::kUnsupported, std::string(medium()) + " does not reach device memory"};
}

Status LinkCore::loop_back(void*, const void*, size_t) {
  return {Code::kUnsupported, std::string(medium()) + " has no RDMA adapter"};
}

LinkCounters LinkCore::counters() const {
  LinkCounters counters;
  counters.puts = counters_.puts.load(std::memory_order_relaxed);
  counters.wakes = counters_.wakes.load(std::memory_order_relaxed);
  counters.window_bytes = counters_.window_bytes.load(std::memory_order_relaxed);
  counters.work_requests = counters_.work_requests.load(std::memory_order_relaxed);
  counters.doorbells = counters_.doorbells.load(std::memory_order_relaxed);
  counters.completions = counters_.completions.load(std::memory_order_relaxed);
  counters.receives = counters_.receives.load(std::memory_order_relaxed);
  counters.arms = counters_.arms.load(std::memory_order_relaxed);
  counters.arm_answers = counters_.arm_answers.load(std::memory_order_relaxed);
  counters.transfer_bytes = counters_.transfer_bytes.load(std::memory_order_relaxed);
  counters.copied_bytes = counters_.copied_bytes.load(std::memory_order_relaxed);
  counters.registrations = counters_.registrations.load(std::memory_order_relaxed);
  return counters;
}

}  // namespace rcuda::transport
