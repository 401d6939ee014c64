#include "server/worker/session_loop.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "api/opcodes.h"
#include "common/base/log.h"
#include "server/executor/custom.h"
#include "server/executor/dispatch.h"
#include "server/executor/output_capture.h"

namespace rcuda::server {
namespace {

using Window = wire::ClientWindow;

// Commands taken before completions are looked after again.
constexpr int kBatch = 64;
constexpr size_t kTraceBatch = 256;
constexpr auto kShortestSleep = std::chrono::microseconds(20);
constexpr auto kLongestSleep = std::chrono::microseconds(500);

// Whether the header names one of the client's reply slots; what is written there goes nowhere
// else.
bool slot_exists(const wire::CommandHeader& header) {
  const auto inside = [&](uint64_t base, uint32_t count, uint32_t bytes) {
    return header.reply_bytes == bytes && header.reply_slot >= base &&
           (header.reply_slot - base) % bytes == 0 && (header.reply_slot - base) / bytes < count;
  };
  return inside(Window::kSmallReplies, Window::kSmallReplyCount, Window::kSmallReplyBytes) ||
         inside(Window::kLargeReplies, Window::kLargeReplyCount, Window::kLargeReplyBytes);
}

// Commands that carry a completion word.
bool signals(uint16_t opcode) {
  switch (static_cast<wire::Custom>(opcode)) {
    case wire::Custom::kSignal:
    case wire::Custom::kWatchEvent:
    case wire::Custom::kSynchronizeContext:
    case wire::Custom::kCopyStaged:
    case wire::Custom::kCopyShape:
    case wire::Custom::kImageChunk:
      return true;
    default:
      return false;
  }
}

// Calls for which the driver waits until the device has nothing more to do.
bool waits_for_device(uint16_t opcode) {
  return opcode == static_cast<uint16_t>(api::Opcode::cuMemFree_v2) ||
         opcode == static_cast<uint16_t>(wire::Custom::kHostUnexpose);
}

uint64_t monotonic_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

Status malformed(uint16_t opcode, const char* what) {
  return Status(Code::kProtocol, "the client sent a malformed command (opcode " +
                                     std::to_string(opcode) + ": " + what + ")");
}

}  // namespace

SessionLoop::SessionLoop(const SessionResources& resources, const SessionLoopOptions& options)
    : link_(*resources.link),
      options_(options),
      executor_(resources),
      ring_(*resources.link, wire::kCommandRingLayout),
      last_activity_(Clock::now()) {}

SessionLoop::~SessionLoop() {
  if (executor_.resources().output) executor_.resources().output->set_sink(nullptr);
}

void SessionLoop::stop() {
  stop_.store(true);
  link_.interrupt();
}

Status SessionLoop::run() {
  const SessionResources& resources = executor_.resources();
  if (link_.peer_window_bytes() < Window::kBytes ||
      link_.window().size() < wire::WorkerWindow::kBytes) {
    return Status(Code::kProtocol, "the client's window is too small");
  }
  Result<transport::Region> staging =
      link_.expose(resources.staging, resources.staging_bytes, resources.staging_file);
  if (!staging.ok()) return Status(staging.status()).with_context("exposing the staging region");
  // All threads of the client run on this one here: which of them may make unsafe calls during a
  // capture is the client's to decide, and our own event queries must not break a capture.
  if (executor_.driver().cuThreadExchangeStreamCaptureMode) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    executor_.driver().cuThreadExchangeStreamCaptureMode(&mode);
  }
  if (resources.output) resources.output->set_sink(&executor_.events());
  RCUDA_RETURN_IF_ERROR(executor_.events().ready(*staging));
  Status status = serve();
  if (status.ok()) {
    flush_trace();
    link_.close();
  }
  return status;
}

Status SessionLoop::serve() {
  last_activity_ = Clock::now();
  while (!stop_.load(std::memory_order_relaxed)) {
    bool worked = false;
    for (int i = 0; i < kBatch; ++i) {
      Result<std::span<const std::byte>> frame = ring_.try_next();
      if (!frame.ok()) return frame.status();
      if (frame->empty()) break;
      RCUDA_RETURN_IF_ERROR(handle(*frame));
      if (ended_) return {};
      worked = true;
    }
    if (executor_.completions().poll()) worked = true;
    RCUDA_RETURN_IF_ERROR(failure_);
    if (worked) {
      last_activity_ = Clock::now();
    } else {
      RCUDA_RETURN_IF_ERROR(idle());
    }
  }
  return {};
}

Status SessionLoop::idle() {
  const Clock::time_point now = Clock::now();
  const auto quiet = now - last_activity_;
  if (quiet < options_.spin) {
    __builtin_ia32_pause();
    return {};
  }
  flush_trace();
  const auto ready = [this] { return stop_.load() || ring_.pending(); };
  Clock::time_point until = now + std::chrono::hours(1);
  if (!executor_.completions().empty()) {
    // Sleeping a sixteenth of what has passed adds little to any wait and leaves the core alone.
    until = now + std::clamp<Clock::duration>(quiet / 16, kShortestSleep, kLongestSleep);
  }
  const Status status = link_.wait(ready, until);
  return status.code() == Code::kTimeout ? Status() : status;
}

Status SessionLoop::handle(std::span<const std::byte> frame) {
  wire::CommandHeader header;
  if (frame.size() < sizeof header) return Status(Code::kProtocol, "a command without a header");
  std::memcpy(&header, frame.data(), sizeof header);
  if (header.call != 0 && !slot_exists(header)) {
    return malformed(header.opcode, "no such reply slot");
  }
  ++executor_.commands;
  if (header.opcode == static_cast<uint16_t>(wire::Custom::kSessionEnd)) {
    ended_ = true;
    return {};
  }
  if (header.call != 0 && waits_for_device(header.opcode) &&
      executor_.make_current(header.context) == CUDA_SUCCESS && executor_.current_context()) {
    postpone(header, frame.subspan(sizeof header));
    return {};
  }
  return carry_out(header, frame.subspan(sizeof header));
}

// The driver would hold its caller until the device is idle; the executor thread waits for nobody,
// so the command is carried out when the device is. Only its own caller waits for it.
void SessionLoop::postpone(const wire::CommandHeader& header, std::span<const std::byte> body) {
  executor_.when_idle(
      *executor_.current_context(),
      [this, header, copy = std::vector<std::byte>(body.begin(), body.end())](CUresult) {
        const Status status = carry_out(header, copy);
        if (failure_.ok()) failure_ = status;
      });
}

Status SessionLoop::carry_out(const wire::CommandHeader& header, std::span<const std::byte> body) {
  ReplyTarget target;
  if (header.call != 0) target = {header.call, header.reply_slot, header.reply_bytes};
  const bool traced = header.flags & wire::kFlagTraced;
  const uint64_t begin_ns = traced ? monotonic_ns() : 0;
  reply_.clear();
  HandlerResult result;
  if (CUresult current = executor_.make_current(header.context);
      current != CUDA_SUCCESS && !signals(header.opcode)) {
    result.result = current;
  } else {
    // Somebody waits for a signal, whatever the context: without a current one it carries the
    // error.
    if (current != CUDA_SUCCESS) executor_.forget_current();
    result = dispatch(header, body, target);
  }
  if (traced) {
    trace_.push_back({begin_ns, monotonic_ns(), header.call, header.opcode,
                      static_cast<uint16_t>(header.thread)});
    if (trace_.size() >= kTraceBatch) flush_trace();
  }
  if (result.malformed) return malformed(header.opcode, "its body");
  if (result.deferred) return {};
  if (target.call) {
    executor_.reply(target, result.result, reply_);
  } else if (result.result != CUDA_SUCCESS) {
    RCUDA_DEBUG("posted command %u failed: CUDA error %d", header.opcode,
                static_cast<int>(result.result));
    executor_.latch(result.result);
  }
  return {};
}

HandlerResult SessionLoop::dispatch(const wire::CommandHeader& header,
                                    std::span<const std::byte> body, const ReplyTarget& target) {
  if (header.opcode < static_cast<uint16_t>(wire::Custom::kFirstGenerated)) {
    const CustomHandler handler = custom_handler(header.opcode);
    if (!handler) return kMalformed;
    return handler(executor_, Command{header, body, target}, &reply_);
  }
  const HandlerEntry* entry = generated_handler(header.opcode);
  if (!entry) return kMalformed;
  wire::Decoder in(body);
  wire::Encoder out(target.call ? target.capacity() : wire::kMaxBodyBytes);
  HandlerResult result = entry->handler(executor_, header, in, out);
  if (target.call && !result.malformed && !result.deferred) {
    if (!out.ok() && result.result == CUDA_SUCCESS) result.result = CUDA_ERROR_INVALID_VALUE;
    reply_.assign(out.body().begin(), out.body().end());
  }
  return result;
}

void SessionLoop::flush_trace() {
  if (trace_.empty()) return;
  (void)executor_.events().trace(trace_);
  trace_.clear();
}

}  // namespace rcuda::server
