#include "common/transport/link_core.h"

#include <algorithm>

#include "common/base/log.h"
#include "common/base/units.h"

namespace rcuda::transport {

Status check_window_bytes(uint64_t bytes, const char* whose) {
  if (bytes >= 4096 && bytes <= kMaxWindowBytes && bytes % 8 == 0) return {};
  return {Code::kInvalidArgument, std::string(whose) + " window of " + std::to_string(bytes) +
                                      " bytes is invalid: a window has a multiple of 8 bytes, from "
                                      "4 KiB to " +
                                      bytes_text(kMaxWindowBytes)};
}

Status check_region(const void* base, size_t bytes) {
  if (base != nullptr && bytes != 0) return {};
  return {Code::kInvalidArgument, "cannot expose a region at address 0 or of 0 bytes"};
}

Status not_exposed(RegionId region) {
  return {Code::kNotFound, "cannot withdraw region " +
                               std::to_string(static_cast<uint64_t>(region)) +
                               ": it is not exposed"};
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
    // broken() is called first: if the peer's last put arrives between the two calls, ready() still
    // sees it.
    const bool over = broken();
    satisfied = ready();
    if (!satisfied && !over) before_sleep();
    return satisfied || over;
  };
  const bool apart = separates_answers_ && woken_by == WokenBy::kNotAnswers;
  const bool woken = (apart ? elsewhere_ : doorbell_).sleep(look, deadline);
  if (satisfied) return {};
  if (woken) return status();
  return {Code::kTimeout, "the peer did not send the expected data within the time limit"};
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
  if (end == End::kLost) RCUDA_WARN("the %s link failed: %s", medium(), why.c_str());
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
    return {Code::kInvalidArgument,
            "cannot put " + std::to_string(total) + " bytes in " + std::to_string(pieces) +
                " pieces at offset " + std::to_string(offset) + " of the peer's window of " +
                std::to_string(peer_window_bytes) +
                " bytes: size and offset must be multiples of 8 inside the window, in at most " +
                std::to_string(kMaxPutPieces) + " pieces"};
  }
  return {};
}

Status LinkCore::check_region_put(size_t bytes) const {
  if (broken()) return status();
  if (bytes != 0 && bytes <= kMaxRegionPut) return {};
  return {Code::kInvalidArgument, "cannot put " + std::to_string(bytes) +
                                      " bytes into a region of the peer: 1 to " +
                                      std::to_string(kMaxRegionPut) + " bytes are possible"};
}

Result<Region> LinkCore::expose_device(void*, size_t, const DeviceMemory&) {
  return Status{Code::kUnsupported, std::string("device memory cannot be exposed over ") +
                                        medium() + ": only an RDMA adapter (verbs) reaches it"};
}

Status LinkCore::loop_back(void*, const void*, size_t) {
  return {Code::kUnsupported,
          std::string("a connection over ") + medium() + " has no RDMA adapter to test"};
}

LinkCounters LinkCore::counters() const {
  const LiveCounters& live = counters_;
  return {.puts = live.puts,
          .wakes = live.wakes,
          .window_bytes = live.window_bytes,
          .work_requests = live.work_requests,
          .doorbells = live.doorbells,
          .completions = live.completions,
          .receives = live.receives,
          .arms = live.arms,
          .arm_answers = live.arm_answers,
          .transfer_bytes = live.transfer_bytes,
          .copied_bytes = live.copied_bytes,
          .registrations = live.registrations};
}

}  // namespace rcuda::transport
