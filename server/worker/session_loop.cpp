#include "server/worker/session_loop.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <sys/prctl.h>

#include "api/opcodes.h"
#include "api/traits.h"
#include "common/base/cpu_pause.h"
#include "common/base/log.h"
#include "common/base/monotonic.h"
#include "server/executor/core/custom.h"
#include "server/executor/core/dispatch.h"

namespace rcuda::server {
namespace {

using Window = wire::ClientWindow;

// The number of commands that are executed before the loop polls completions again.
constexpr int kBatch = 64;
constexpr size_t kTraceBatch = 256;
// While completions are pending, the executor first polls without sleeping, for
// SessionLoopOptions::spin times this factor. (A local driver's wait spins until it is done.) Later
// it sleeps between polls. Each sleep is a small fraction of the time that has passed, so it adds
// little to any wait.
constexpr int kSpinsForCompletions = 64;
// The thread yields only after `spin` times this factor, because short work ends earlier.
constexpr int kSpinsBeforeYields = 4;
constexpr int kSleepFraction = 64;
// The shortest sleep while bytes of the client are expected. After each sleep, the thread polls the
// completions that other threads of the client wait for.
constexpr auto kSleepForArrivals = std::chrono::microseconds(100);
constexpr auto kShortestSleep = std::chrono::microseconds(20);
constexpr auto kLongestSleep = std::chrono::microseconds(500);

Status malformed(uint16_t opcode, const char* what) {
  return Status(Code::kProtocol, "the client sent a malformed command (opcode " +
                                     std::to_string(opcode) + ": " + what + "); the session ends");
}

}  // namespace

SessionLoop::SessionLoop(const SessionResources& resources, const SessionLoopOptions& options)
    : link_(*resources.link),
      options_(options),
      executor_(resources),
      services_(executor_.loop_services),
      time_(resources.limits, now()),
      contexts_(*resources.unmetered, resources.devices, services_.objects),
      ring_(*resources.link, wire::kCommandRingLayout),
      last_activity_(Clock::now()),
      scheduler_(services_,
                 [this](const wire::CommandHeader& header, std::span<const std::byte> body) {
                   return custom_command(header.opcode)->may_wait(executor_, {header, body, {}});
                 }) {
  if (const WorkPage* const work = options.work) {
    services_.meters.memory.kept_free = [work](uint32_t device) { return work->kept_free(device); };
  }
  if (options.parker && options.oversubscribes) {
    using What = ParkAnswer::What;
    services_.meters.memory.others = {
        [this](uint32_t ordinal, uint64_t bytes, uint64_t free) {
          return ask_for_room(What::kRoomWanted, {ordinal, bytes, free}) != 0;
        },
        [this] { options_.parker->answer(What::kRoomUsed); },
        [this](uint32_t ordinal, uint64_t free) {
          return ask_for_room(What::kRoomAsked, {ordinal, free});
        }};
  }
}

bool SessionLoop::has_reply_slot(const wire::CommandHeader& header) {
  const auto inside = [&](uint64_t base, uint32_t count, uint32_t bytes) {
    return header.reply_bytes == bytes && header.reply_slot >= base &&
           (header.reply_slot - base) % bytes == 0 && (header.reply_slot - base) / bytes < count;
  };
  return inside(Window::kSmallReplies, Window::kSmallReplyCount, Window::kSmallReplyBytes) ||
         inside(Window::kLargeReplies, Window::kLargeReplyCount, Window::kLargeReplyBytes);
}

SessionLoop::~SessionLoop() {
  if (services_.resources.output) services_.resources.output->set_sink(nullptr);
}

uint64_t SessionLoop::now() const { return options_.now ? options_.now() : monotonic_ns(); }

Status SessionLoop::over() const {
  if (now() < time_.last_end()) return {};
  return {Code::kUnavailable, "the session has reached its limit (session_time)"};
}

void SessionLoop::stop(std::string why) {
  if (!why.empty()) stop_why_ = std::move(why);
  stop_.store(true);
  link_.interrupt();
}

Status SessionLoop::run() {
  const SessionResources& resources = services_.resources;
  if (link_.peer_window_bytes() < Window::kBytes) {
    return Status(Code::kProtocol, "the client's window has " +
                                       std::to_string(link_.peer_window_bytes()) +
                                       " bytes, fewer than the protocol needs (" +
                                       std::to_string(Window::kBytes) + ")");
  }
  if (link_.window().size() < wire::WorkerWindow::kBytes) {
    return Status(Code::kProtocol, "the worker's window has " +
                                       std::to_string(link_.window().size()) +
                                       " bytes, fewer than the protocol needs (" +
                                       std::to_string(wire::WorkerWindow::kBytes) + ")");
  }
  Result<transport::Region> staging =
      link_.expose(resources.staging, resources.staging_bytes, resources.staging_file);
  if (!staging.ok())
    return Status(staging.status()).with_context("exposing the staging memory to the client");
  // The bytes of a slot change only after the client has received them, so the Link need not copy
  // them.
  link_.lend(resources.staging, resources.staging_bytes);
  transport::Region marks;
  if (const std::span<std::byte> written = services_.completions.marks(); !written.empty()) {
    Result<transport::Region> shared =
        link_.expose(written.data(), written.size(), resources.staging_file,
                     static_cast<uint64_t>(written.data() - resources.staging));
    if (!shared.ok())
      return Status(shared.status()).with_context("exposing the GPU-written words to the client");
    marks = *shared;
  }
  // Commands of all client threads run on this thread, so this thread's capture mode is relaxed:
  // the client decides which of its threads may make unsafe calls during a capture. Besides, this
  // worker's own queries must not invalidate a capture.
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  services_.driver.cuThreadExchangeStreamCaptureMode(&mode);
  if (resources.output) resources.output->set_sink(&services_.answers.events());
  if (resources.gpudirect) services_.gpu_direct.prove(resources.devices);
  // By default the kernel adds up to 50 us to every sleep, to wake several threads together.
  ::prctl(PR_SET_TIMERSLACK, 1);
  RCUDA_RETURN_IF_ERROR(
      services_.answers.events().ready(*staging, marks, services_.transfers.gates()));
  if (options_.sleeps_for_arrivals) {
    // Replaces the function of the Executor, which does not wake this thread: idle() sleeps until
    // the last expected byte has arrived.
    link_.on_immediate([this](uint32_t immediate, uint64_t bytes) {
      services_.arrivals.arrived(immediate, bytes);
      if (services_.arrivals.expected() == 0) link_.interrupt();
    });
  }
  Status status = serve();
  link_.on_immediate(nullptr);
  services_.arrivals.end();  // later bytes are useless; no stream may wait for them
  publish_work();
  if (status.ok()) {
    flush_trace();
    if (stop_.load() && !stop_why_.empty()) tell_end(stop_why_);
    link_.close();
  }
  return status;
}

Status SessionLoop::serve() {
  last_activity_ = Clock::now();
  while (!stop_.load(std::memory_order_relaxed)) {
    bool worked = false;
    for (int i = 0; i < kBatch && !rest_until_; ++i) {
      RCUDA_ASSIGN_OR_RETURN(const bool any, next());
      if (!any) break;
      if (ended_) return {};
      worked = true;
      RCUDA_RETURN_IF_ERROR(look_ahead());
    }
    if (services_.jobs.run() || scheduler_.run_freed()) worked = true;
    if (services_.completions.poll()) worked = true;
    if (services_.mirrors.fetch_after_waits()) worked = true;
    services_.region_puts.flush();
    if (device_trace_) [[unlikely]]
      device_trace_->poll(&trace_);
    RCUDA_RETURN_IF_ERROR(failure_);
    if (time_.limits() || contexts_.watches()) [[unlikely]]
      RCUDA_RETURN_IF_ERROR(check_limits());
    if (options_.parker && (options_.parker->any() || rest_until_)) [[unlikely]] {
      RCUDA_RETURN_IF_ERROR(take_step());
      worked |= !rest_until_ && !held_back_.empty();  // a held-back command has woken the session
    }
    if (ended_) return {};
    if (worked) {
      last_activity_ = Clock::now();
      publish_work();
      if (options_.work) options_.work->set_used_at(last_activity_.time_since_epoch());
    } else {
      RCUDA_RETURN_IF_ERROR(idle());
    }
  }
  return {};
}

Status SessionLoop::check_limits() {
  const uint64_t at = now();
  if (const Status lost = contexts_.look(at); !lost.ok()) return end_for(lost.context());
  if (!time_.limits()) return {};
  const uint64_t commands = services_.done[wire::Counter::kCommands];
  if (std::exchange(commands_seen_, commands) != commands) time_.used(at);
  if (options_.work) options_.work->set_idle_end(time_.idle_end());
  if (at < time_.due()) return {};
  const std::optional<SessionTime::Notice> notice = time_.poll(at, [this] {
    if (parked_) return !held_back_.empty();  // a held-back command wakes the session
    return !held_back_.empty() || services_.peers.copying() || services_.idle.any_work();
  });
  if (!notice) return {};
  if (notice->ends) return end_for(notice->text);
  RCUDA_INFO("%s", notice->text.c_str());
  (void)services_.answers.events().notice(false, notice->text);
  return {};
}

Status SessionLoop::end_for(const std::string& why) {
  RCUDA_INFO("%s", why.c_str());
  tell_end(why);
  return {Code::kUnavailable, why};
}

// The client closes the Link when it has read the reason.
void SessionLoop::tell_end(const std::string& why) {
  constexpr auto kPatience = std::chrono::seconds(1);
  if (!services_.answers.events().notice(true, why).ok()) return;
  const bool stops = stop_.load();
  (void)link_.wait([this, stops] { return stop_.load() != stops; }, Clock::now() + kPatience);
}

uint64_t SessionLoop::limits_due() const {
  uint64_t due = time_.limits() ? time_.due() : SessionTime::kNever;
  if (contexts_.watches()) due = std::min(due, contexts_.due());
  // A command that the limit of the bandwidth holds back is due in the future. After due() has
  // passed, a held-back command waits for other workers and needs no timer.
  if (!held_back_.empty() && scheduler_.due() > now()) {
    due = std::min(due, scheduler_.due());
  }
  return due;
}

// A command may stay in the driver for long. The daemon must not take this time for idleness.
void SessionLoop::note_busy() {
  if (time_.limits() && options_.work) [[unlikely]]
    options_.work->set_idle_end(WorkPage::kBusy);
}

Result<bool> SessionLoop::next() {
  if (!held_back_.empty()) [[unlikely]] {
    if (!scheduler_.may_start(held_back_, [this] { return now(); })) return false;
    const std::vector<std::byte> frame = std::exchange(held_back_, {});
    note_busy();
    RCUDA_RETURN_IF_ERROR(handle(frame));
    return true;
  }
  RCUDA_ASSIGN_OR_RETURN(const std::span<const std::byte> frame, ring_.try_next());
  if (frame.empty()) return false;
  if (waits_ahead_.was_ahead()) {
    ++services_.done[wire::Counter::kCommands];
    return true;
  }
  if (!scheduler_.may_start(frame, [this] { return now(); })) [[unlikely]] {
    held_back_.assign(frame.begin(), frame.end());
    return false;
  }
  note_busy();
  RCUDA_RETURN_IF_ERROR(handle(frame));
  return true;
}

Status SessionLoop::look_ahead() {
  if (!held_back_.empty()) [[unlikely]]
    return {};
  for (const WaitsAhead::Payload& frame :
       waits_ahead_.next(services_.done[wire::Counter::kCommands])) {
    RCUDA_RETURN_IF_ERROR(handle(frame, true));
  }
  services_.completions.poll_watches();
  return {};
}

void SessionLoop::count(uint16_t opcode, CUresult result) {
  wire::Work& done = services_.done;
  if (result == CUDA_ERROR_NOT_READY) return;  // not a failure: a query has found unfinished work
  if (result != CUDA_SUCCESS) {
    ++done[wire::Counter::kFailedCommands];
  } else if (opcode == static_cast<uint16_t>(wire::Custom::kLaunch) ||
             opcode == static_cast<uint16_t>(wire::Custom::kLaunchOnDevices)) {
    ++done[wire::Counter::kLaunches];
  } else if (opcode == static_cast<uint16_t>(api::Opcode::cuGraphLaunch)) {
    ++done[wire::Counter::kGraphLaunches];
  }
}

void SessionLoop::publish_work() {
  services_.peers.count_copies(&services_.done);
  services_.meters.memory.note_peak();
  if (!options_.work) return;
  options_.work->write(services_.done);
  const MemoryMeter& memory = services_.meters.memory;
  for (const uint32_t ordinal : memory.ordinals()) {
    options_.work->hold(ordinal, memory.held(ordinal));
  }
}

Status SessionLoop::idle() {
  const Clock::time_point now = Clock::now();
  // The client may be waiting for copies between workers, and send commands when they end. So the
  // end of copies counts as activity.
  const bool copying = services_.peers.copying();
  if (std::exchange(copied_, copying) && !copying) last_activity_ = now;
  const auto quiet = now - last_activity_;
  const bool polls =
      !services_.completions.empty() || services_.mirrors.any_after_waits() || scheduler_.crowded();
  // With few processors, the threads that receive bytes need this thread's processor. So this
  // thread sleeps, and the last byte wakes it.
  const bool receives = options_.sleeps_for_arrivals && services_.arrivals.expected() != 0;
  const auto spin = polls || copying ? kSpinsForCompletions * options_.spin : options_.spin;
  if (!receives && quiet < spin) {
    const bool gives_way = options_.yields && quiet >= kSpinsBeforeYields * options_.spin;
    gives_way ? std::this_thread::yield() : cpu_pause();
    return {};
  }
  flush_trace();
  const uint64_t due = limits_due();
  const bool limited = due != SessionTime::kNever;
  const auto ready = [this, due, limited, receives] {
    return stop_.load() || services_.jobs.any() ||
           (held_back_.empty() && !rest_until_ && ring_.pending()) ||
           (options_.parker && options_.parker->any()) || (limited && this->now() >= due) ||
           (receives && services_.arrivals.expected() == 0);
  };
  // At most an hour: a time from a falsified ledger could overflow the time_point.
  std::chrono::nanoseconds pause = std::chrono::hours(1);
  if (limited) {
    const uint64_t left = due - std::min(due, this->now());
    if (left < static_cast<uint64_t>(pause.count())) pause = std::chrono::nanoseconds(left);
  }
  Clock::time_point until = now + pause;
  if (polls || (device_trace_ && device_trace_->pending())) {
    const Clock::duration least = receives ? kSleepForArrivals : kShortestSleep;
    until = std::min(
        until, now + std::clamp<Clock::duration>(quiet / kSleepFraction, least, kLongestSleep));
  }
  if (rest_until_) until = std::min(until, now + kLongestSleep);
  // If the Link is broken, its error is returned here and ends the session.
  const Status status = link_.wait(ready, until);
  if (receives && services_.arrivals.expected() == 0) last_activity_ = Clock::now();
  // A program that continues may copy next, so the engine's thread is woken as well.
  if (status.ok() && services_.peers.active()) services_.peers.engine().wake();
  return status.code() == Code::kTimeout ? Status() : status;
}

Status SessionLoop::handle(std::span<const std::byte> frame, bool ahead) {
  wire::CommandHeader header;
  if (frame.size() < sizeof header) {
    return Status(Code::kProtocol, "the client sent a command of " + std::to_string(frame.size()) +
                                       " bytes, shorter than a command's header");
  }
  std::memcpy(&header, frame.data(), sizeof header);
  if (header.call != 0 && !has_reply_slot(header)) {
    return malformed(header.opcode, "its reply slot does not exist");
  }
  const uint64_t number = ahead ? 0 : ++services_.done[wire::Counter::kCommands];
  if (header.opcode == static_cast<uint16_t>(wire::Custom::kSessionEnd)) {
    ended_ = true;
    return {};
  }
  const auto body = frame.subspan(sizeof header);
  if (scheduler_.must_postpone(header)) {
    scheduler_.postpone(header, body, [this, header, number](std::span<const std::byte> later) {
      const Status status = carry_out(header, later, number);
      if (failure_.ok()) failure_ = status;
    });
    return {};
  }
  scheduler_.note_free_in_stream(header.opcode, body);
  return carry_out(header, body, number);
}

Status SessionLoop::carry_out(const wire::CommandHeader& header, std::span<const std::byte> body,
                              uint64_t number) {
  ReplyTarget target;
  if (header.call != 0) target = {header.call, header.reply_slot, header.reply_bytes};
  const bool traced = header.flags & wire::kFlagTraced;
  const uint64_t begin_ns = traced ? monotonic_ns() : 0;
  reply_.clear();
  const api::CommandTraits& traits = api::traits_of(header.opcode);
  if (traits.queues == api::Queues::kWork || traits.queues == api::Queues::kAnswered) {
    services_.work.note();
  }
  HandlerResult result;
  if (CUresult current = services_.objects.make_current(header.context);
      current != CUDA_SUCCESS && !traits.signals() && !traits.any_context) {
    result.result = current;
  } else {
    // A thread of the client, or the worker that PeerSignal names, waits for a signal, even if the
    // context is invalid. Without a current context the signal carries the error.
    if (current != CUDA_SUCCESS) services_.objects.forget_current();
    if (traced) [[unlikely]]
      trace_device(header, body, number);
    const auto copies = [&done = services_.done] {
      return done[wire::Counter::kCopies] + done[wire::Counter::kGraphLaunches];
    };
    const uint64_t before = copies();
    result = dispatch(header, body, target);
    count(header.opcode, result.result);
    // Counts only copies that the handler has accepted: a hostile client may name any number of
    // bytes.
    if (services_.pace.limits() && copies() != before) [[unlikely]] {
      services_.pace.book(header.opcode, body, this->now());
    }
    const bool frees = traits.frees == api::Frees::kAtOnce || traits.frees == api::Frees::kContext;
    if (frees) services_.gpu_direct.sweep();
  }
  if (traced) [[unlikely]] {
    if (device_trace_) device_trace_->after();
    trace_.push_back({begin_ns, monotonic_ns(), number, header.opcode,
                      static_cast<uint16_t>(header.thread), 0, 0, 0});
    if (trace_.size() >= kTraceBatch) flush_trace();
  }
  if (result.malformed) return malformed(header.opcode, "its body is invalid");
  if (result.deferred) return {};
  if (target.call) {
    services_.answers.reply(target, result.result, reply_);
  } else if (result.result != CUDA_SUCCESS) {
    RCUDA_DEBUG("posted command with opcode %u failed: CUDA error %d", header.opcode,
                static_cast<int>(result.result));
    services_.answers.latch(result.result);
  }
  return {};
}

HandlerResult SessionLoop::dispatch(const wire::CommandHeader& header,
                                    std::span<const std::byte> body, const ReplyTarget& target) {
  if (header.opcode < static_cast<uint16_t>(wire::Custom::kFirstGenerated)) {
    const CustomEntry* entry = custom_command(header.opcode);
    if (!entry) return kMalformed;
    return entry->run(executor_, Command{header, body, target}, &reply_);
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

void SessionLoop::trace_device(const wire::CommandHeader& header, std::span<const std::byte> body,
                               uint64_t number) {
  if (!device_trace_)
    device_trace_ = std::make_unique<DeviceTrace>(services_.driver, services_.objects);
  if (api::traits_of(header.opcode).frees == api::Frees::kContext) device_trace_->forget_all();
  device_trace_->before(header, body, number);
}

void SessionLoop::flush_trace() {
  std::span<const wire::TraceEvent> left(trace_);
  while (!left.empty()) {
    const auto batch = left.first(std::min(left.size(), kTraceBatch));
    (void)services_.answers.events().trace(batch);
    left = left.subspan(batch.size());
  }
  trace_.clear();
}

}  // namespace rcuda::server
