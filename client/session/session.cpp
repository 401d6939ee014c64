#include "client/session/session.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "api/opcodes.h"
#include "api/traits.h"
#include "client/session/capture_answers.h"
#include "client/trace/trace.h"
#include "common/base/cancellation_off.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/cuda/errors.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {

// ---- commands ----------------------------------------------------------------------------------

namespace {

// Returns the calling thread's number, counted from 1 in the order in which threads first call this
// function.
uint32_t thread_number() {
  static std::atomic<uint32_t> threads{0};
  thread_local const uint32_t number = threads.fetch_add(1, std::memory_order_relaxed) + 1;
  return number;
}

bool is_of_fetches(const Timeline* timeline) {
  return timeline && timeline->stream() == wire::kFetchStream;
}

// Whether RCUDA_WAKE_WAIT limits how long a command waits for a parked session. True if the command
// wakes the session and its sender can return the error without side effects. These commands wait
// in the ring without a limit:
// - commands that end an object or free memory, because the client has already released the
//   object's id or the address
// - commands for copies between servers
// - commands that may carry a completion word: marks, waits and copies. Before a copy, the sender
//   calls await_room().
bool may_find_no_room(const wire::Command& command) {
  const api::CommandTraits& traits = api::traits_of(command.opcode);
  if (command.is<wire::PingBody>() || command.is<wire::SessionEndBody>() ||
      command.is<wire::PeerIntroduceBody>() || traits.holds_stream || traits.signals() ||
      traits.link != api::CommandTraits::kNone || traits.frees != api::Frees::kNothing ||
      command.opcode == static_cast<uint16_t>(api::Opcode::cuMemGetInfo_v2)) {
    return false;
  }
  constexpr std::string_view kEnds[] = {"Destroy", "Unload", "Free",      "Release",
                                        "Unmap",   "Close",  "Unregister"};
  const char* const known = api::opcode_name(command.opcode);
  const std::string_view name = known ? known : "";
  return std::ranges::none_of(kEnds,
                              [&](std::string_view part) { return name.find(part) != name.npos; });
}

// Whether the GPU may write to the program's memory after the command. False for copies of pageable
// memory, whose callers call note_write() if the memory is mirrored. `room`: the result of
// room_of().
bool may_write(const wire::Command& command, const Timeline* timeline, uint64_t room) {
  if (command.is<wire::SignalBody>() || command.is<wire::CopyInlineBody>() ||
      command.is<wire::CopyStagedBody>()) {
    return false;
  }
  return room > 0 && !api::traits_of(command.opcode).waits_for_device && !is_of_fetches(timeline);
}

// Returns the number of places that the command takes in a driver's queue. `moves_bytes`: the
// medium moves the bytes of page-locked memory, in parts. A copy of such memory then takes two more
// places for each part: either for a GPU-written word and an event, or for a further copy and the
// wait (or host function) before it. A staged copy whose bytes come after the command takes one
// more place, for the stream's wait for the bytes.
uint64_t room_of(const wire::Command& command, bool moves_bytes) {
  const api::CommandTraits& traits = api::traits_of(command.opcode);
  const std::span<const std::byte> body = command.body;
  if (moves_bytes && command.is<wire::CopyBody>()) {
    wire::CopyBody copy;
    std::memcpy(&copy, body.data(), sizeof copy);
    return 2 * wire::parts_of(copy.bytes) + room_of(command, false);
  }
  if (moves_bytes && command.is<wire::CopyStagedBody>()) {
    wire::CopyStagedBody copy;
    std::memcpy(&copy, body.data(), sizeof copy);
    return (copy.to_device && copy.immediate ? 1 : 0) + room_of(command, false);
  }
  if (command.is<wire::NcclPostBody>()) {
    // Around the kernels, NCCL queues a wait and a record of an event in the stream, and a wait and
    // a record in a stream of its own.
    constexpr uint64_t kAround = 4;
    wire::NcclCallsBody calls;
    std::memcpy(&calls, body.data(), sizeof calls);
    return kAround + calls.count;
  }
  if (traits.queues == api::Queues::kIfItHolds) return api::holds_stream(traits, body) ? 1 : 0;
  if (traits.queues != api::Queues::kWork) return 0;
  // A copy that writes a completion word queues an event after itself.
  if (!traits.signals() || traits.device_work == api::CommandTraits::kNone ||
      body.size() < traits.body_bytes)
    return 1;
  uint64_t sequence;
  std::memcpy(&sequence, body.data() + traits.sequence, sizeof sequence);
  return sequence == 0 ? 1 : 2;
}

}  // namespace

CUresult Session::send(wire::CommandHeader header, Timeline* timeline, const wire::Command& command,
                       transport::Wake wake, SentCommand* sent) {
  if (lacking_.contains(command.opcode)) [[unlikely]] {
    return lacking_.refuse(command.opcode, name_);
  }
  const size_t bytes = sizeof header + command.body.size() + command.tail.size();
  if (bytes > wire::kMaxCommandBytes) {
    RCUDA_ERROR(
        "%s: cannot send a call of %s with %s of arguments: the limit is %s; the call "
        "returns CUDA_ERROR_INVALID_VALUE",
        name_.c_str(), api::opcode_name(command.opcode), exact_bytes_text(bytes).c_str(),
        exact_bytes_text(wire::kMaxCommandBytes).c_str());
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Refuse the command: the Link may stay open for a moment after the loss, and the worker would
  // still execute the command.
  if (state_.get() == SessionState::kLost) return kSessionLost;
  if (wake_wait_.count() != 0 && is_parked() && may_find_no_room(command)) [[unlikely]] {
    RCUDA_RETURN_IF_CUDA_ERROR(await_room());
  }
  header.thread = thread_number();
  SentCommand counted;
  const auto count = [&](uint64_t number) {
    counted.number = number;
    uint64_t room = room_of(command, traits_.has_region_puts);
    if (room > 0 && channel_->is_marked(command)) ++room;
    if (timeline) {
      counted.position = timeline->count(room);
    } else if (room > 0) {
      timelines_.count_unplaced();
    }
    if (may_write(command, timeline, room)) mirrors_.note_write();
  };
  const Status appended = channel_->send(header, command, wake, count);
  *sent = counted;
  if (appended.ok()) return CUDA_SUCCESS;
  sent->number = 0;
  return lose(appended);
}

CUresult Session::wake() {
  const uint64_t park_word = channel_->park_word();
  if (park_word == 0) return CUDA_SUCCESS;
  return await_wake(park_word, std::chrono::steady_clock::time_point::max());
}

CUresult Session::await_room() {
  if (wake_wait_.count() == 0) [[likely]]
    return CUDA_SUCCESS;
  const uint64_t park_word = channel_->park_word();
  if (park_word == 0) return CUDA_SUCCESS;
  return await_wake(park_word, std::chrono::steady_clock::now() + wake_wait_);
}

// Wakes the session, then waits until it is awake. Returns CUDA_ERROR_OUT_OF_MEMORY if it is still
// parked at `limit`.
CUresult Session::await_wake(uint64_t park_word, std::chrono::steady_clock::time_point limit) {
  const CancellationOff off;
  if (woken_.exchange(park_word) != park_word) {
    wire::CommandHeader header{};
    header.thread = thread_number();
    const Status sent = channel_->send(header, wire::WakeBody{});
    if (!sent.ok()) return lose(sent);
  }
  const auto is_awake = [&] { return channel_->park_word() != park_word; };
  constexpr auto kLongest = std::chrono::hours(24);
  for (;;) {
    const auto now = std::chrono::steady_clock::now();
    const Status status = link_->wait(is_awake, std::min(limit, now + kLongest));
    if (status.ok() || is_awake()) return CUDA_SUCCESS;
    if (status.code() != Code::kTimeout) return lose(status);
    if (std::chrono::steady_clock::now() < limit) continue;
    if (!told_no_room_.exchange(true)) {
      RCUDA_WARN(
          "%s: the session is parked, and its GPUs had no room for it within RCUDA_WAKE_WAIT (%s): "
          "the call gets CUDA_ERROR_OUT_OF_MEMORY. Raise RCUDA_WAKE_WAIT, or leave it unset to "
          "wait without a limit",
          name_.c_str(), time_text(wake_wait_).c_str());
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

CUresult Session::post(const Route& route, const wire::Command& command, transport::Wake wake,
                       SentCommand* sent) {
  SentCommand unasked;
  if (!sent) sent = &unasked;
  if (synchronous_ || awaits_answers()) {
    return call(route, command, sent);
  }
  trace::CommandSpan span(trace_, command.opcode, true);
  wire::CommandHeader header{};
  header.flags = span.flags();
  header.context = route.context;
  const CUresult result = send(header, route.timeline, command, wake, sent);
  span.sent(sent->number);
  return result;
}

bool Session::answers(uint16_t opcode) const {
  return synchronous_ || awaits_answers() || lacking_.contains(opcode);
}

bool Session::begin(const Route& route, const wire::Command& command, const CallOptions& options,
                    PendingCall* call) {
  if (!channel_->acquire_slot(options.reply_bytes, options.patient, &call->slot)) return false;
  trace::CommandSpan& span = call->span.emplace(trace_, command.opcode, !options.at_once);
  wire::CommandHeader header{};
  header.flags = span.flags();
  header.context = route.context;
  call->slot.name_in(&header);
  call->result = send(header, route.timeline, command, options.wake, &call->sent);
  span.sent(call->sent.number);
  if (!options.at_once) call->span.reset();
  return true;
}

CUresult Session::finish(PendingCall& call, Reply* reply) {
  *reply = Reply();  // releases the slot of an earlier call
  std::optional<trace::Span> wait;
  if (!call.span) wait.emplace("wait for an answer", "wait");
  const CUresult result = call.sent.is_sent() ? wait_for_reply(call, reply) : call.result;
  call.span.reset();
  if (!reply->has_slot()) channel_->release_slot(call.slot);
  return result;
}

bool Session::await(const PendingCall& call, std::chrono::steady_clock::time_point deadline) {
  const CancellationOff off;
  const auto decided = [&] {
    return !call.sent.is_sent() || channel_->has_reply(call.slot) || lost();
  };
  if (decided()) return true;
  if (deadline <= std::chrono::steady_clock::now()) return false;
  (void)channel_->wait_until(decided, deadline);
  return decided();
}

CUresult Session::call(const Route& route, const wire::Command& command, size_t reply_bytes,
                       Reply* reply, SentCommand* sent) {
  PendingCall call;
  const bool waits = api::traits_of(command.opcode).waits_for_device;
  if (waits && !timelines_.is_quiet(Timelines::Scope::kContext, route.context)) {
    mirrors_.show_writes();
  }
  const MirrorSync::Point before = mirrors_.point(route.context, 0);
  begin(route, command, {.reply_bytes = reply_bytes, .at_once = true}, &call);
  if (sent) *sent = call.sent;
  const CUresult result = finish(call, reply);
  if (result != CUDA_SUCCESS) {
    note_refusal(result);
  } else if (waits && mirrors_.fetch_after_call(before) != CUDA_SUCCESS) {
    // The command itself has been executed. The next push or wait fetches again and returns the
    // error.
    if (lost()) return kSessionLost;
  }
  return result;
}

template <typename Ready>
CUresult Session::wait_until(const Ready& ready) {
  // Call lost() before ready(): the worker's last answer may arrive between the two calls, and then
  // counts.
  const bool over = lost();
  if (ready()) return CUDA_SUCCESS;
  if (over) return kSessionLost;
  const Status status = channel_->wait(ready);
  return status.ok() ? CUDA_SUCCESS : lose(status);
}

CUresult Session::wait_for(const std::function<bool()>& ready) {
  const CancellationOff off;
  return wait_until(ready);
}

CUresult Session::wait_for_reply(const PendingCall& call, Reply* reply) {
  const CancellationOff off;
  RCUDA_RETURN_IF_CUDA_ERROR(wait_until([&] { return channel_->has_reply(call.slot); }));
  uint32_t result = 0;
  const Status taken = channel_->take_reply(call.slot, &result, reply);
  if (!taken.ok()) return lose(taken);
  events_->drain_output();
  return static_cast<CUresult>(result);
}

wire::ObjectId stream_id(const Route& route) {
  return route.timeline ? route.timeline->stream() : 0;
}

void pace(const Route& route) {
  if (route.timeline) route.timeline->pace();
}

// ---- completion words --------------------------------------------------------------------------

bool Session::word_reached(const Word& word, CUresult* result) const {
  uint32_t said = 0;
  const bool reached = channel_->word_reached(word, &said);
  *result = static_cast<CUresult>(said);
  return reached;
}

CUresult Session::wait_word(const Word& word, const Timeline* of) {
  const CancellationOff off;
  trace::Span span("wait for the worker's word", "wait");
  CUresult result = CUDA_SUCCESS;
  const auto reached = [&] { return word_reached(word, &result); };
  RCUDA_RETURN_IF_CUDA_ERROR(wait_until(reached));
  if (!is_of_fetches(of)) events_->drain_output();
  return result;
}

uint64_t Session::post_mark(Timeline& timeline, const Word& word) {
  const Route route{this, timeline.context(), 0, &timeline};
  SentCommand sent;
  // If the session is lost, every later call returns kSessionLost.
  (void)post(route, wire::SignalBody{timeline.stream(), word.index, word.sequence},
             transport::Wake::kYes, &sent);
  return sent.position;
}

// ---- errors and the end ------------------------------------------------------------------------

CUresult Session::take_error() {
  if (lost()) return kSessionLost;
  const uint64_t error = channel_->error_word();
  if (error == 0) [[likely]]
    return CUDA_SUCCESS;
  const auto result = static_cast<CUresult>(wire::CompletionWord::result(error));
  if (result == kSessionLost || cuda::is_sticky(result)) return result;
  // The context stays usable, so report the error only once. Meanwhile another thread may have
  // reported this error or a later one.
  uint64_t reported = reported_error_.load();
  do {
    if (wire::CompletionWord::sequence(reported) >= wire::CompletionWord::sequence(error)) {
      return CUDA_SUCCESS;
    }
  } while (!reported_error_.compare_exchange_weak(reported, error));
  return result;
}

SessionState Session::state() {
  if (!is_over(state_.get())) {
    if (const Status status = link_->status(); !status.ok()) (void)lose(status);
  }
  return state_.get();
}

CUresult Session::lose(const Status& why) {
  {
    MutexLock lock(loss_mutex_);
    if (is_over(state_.get())) return kSessionLost;
    // Log the loss before the state changes: the program may exit as soon as another thread's call
    // has returned the error.
    const std::string reason = why.code() == Code::kUnavailable ? why.context() : why.message();
    RCUDA_ERROR("%s is lost: %s; every call on its devices returns an error from now on",
                name_.c_str(), reason.c_str());
    state_.move(SessionEvent::kLoss, name_);
  }
  if (link_->status().ok()) link_->close();
  return kSessionLost;
}

bool Session::accepts(uint64_t address, uint64_t bytes, const char* what) {
  if (windows_.owns(address, bytes)) [[likely]]
    return true;
  char text[160];
  std::snprintf(text, sizeof text,
                "the worker returned %s of %s at 0x%llx, outside of its device addresses", what,
                exact_bytes_text(bytes).c_str(), static_cast<unsigned long long>(address));
  (void)lose(Status(Code::kProtocol, text));
  return false;
}

}  // namespace rcuda::client
