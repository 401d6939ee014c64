#include "client/session/session.h"

#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>

#include "api/traits.h"
#include "client/session/capture_answers.h"
#include "client/session/staging.h"
#include "client/trace/trace.h"
#include "common/base/cancellation_off.h"
#include "common/base/cpu_pause.h"
#include "common/base/log.h"
#include "common/cuda/errors.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {
namespace {

using Clock = std::chrono::steady_clock;
using Window = wire::ClientWindow;
constexpr auto kForever = std::chrono::hours(24);

}  // namespace

uint32_t thread_number() {
  static std::atomic<uint32_t> threads{0};
  thread_local const uint32_t number = threads.fetch_add(1, std::memory_order_relaxed) + 1;
  return number;
}

Session::Session()
    : serial_([] {
        static std::atomic<uint64_t> sessions{0};
        return ++sessions;
      }()) {}

// Adds the worker's reports to the trace. Some round trips measure the difference of the clocks.
void Session::trace() {
  constexpr int kRoundTrips = 16;
  trace_ = trace::add_server(name_, welcome_.worker_pid,
                             traits_.reach == transport::Reach::kThisMachine);
  events_->set_trace_sink([index = trace_](std::span<const wire::TraceEvent> events) {
    trace::server_events(index, events);
  });
  for (int i = 0; i < kRoundTrips; ++i) {
    Reply reply;
    (void)call(in_context(0), wire::PingBody{}, 0, &reply);
  }
}

// Waits for the last reports, at most kPatience. The worker sends them when it is idle; a worker
// that hangs never sends them.
void Session::await_trace() {
  constexpr auto kPatience = std::chrono::seconds(1);
  const uint64_t last = commands();
  const Clock::time_point deadline = Clock::now() + kPatience;
  while (!lost() && !trace::reported(trace_, last) && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Session::~Session() {
  events_.reset();
  staging_.reset();
}

// ---- commands ----------------------------------------------------------------------------------

namespace {

bool is_of_fetches(const Timeline* timeline) {
  return timeline && timeline->stream() == wire::kFetchStream;
}

// Whether the GPU may write to the program's memory after the command, given the room that it
// takes.
bool may_write(const wire::Command& command, const Timeline* timeline, uint64_t room) {
  if (command.is<wire::SignalBody>() || command.is<wire::CopyInlineBody>() ||  // note_write()
      command.is<wire::CopyStagedBody>()) {
    return false;
  }
  return room > 0 && !api::traits_of(command.opcode).waits_for_device && !is_of_fetches(timeline);
}

// The number of places that the command takes in a driver's queue. `moves_bytes`: copies of
// page-locked memory move its bytes in parts. Each takes two more than one place for all: a mark
// and an event, a wait or a host function and a further copy. A slot of the staging region that is
// filled behind the command is waited for.
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
  const std::span<const std::byte> body = command.body;
  const size_t bytes = sizeof header + body.size() + command.tail.size();
  if (bytes > wire::kMaxCommandBytes) {
    RCUDA_ERROR("a command (opcode %u) of %zu bytes exceeds the limit of %u: it is not sent",
                command.opcode, bytes, wire::kMaxCommandBytes);
    return CUDA_ERROR_INVALID_VALUE;
  }
  // The Link may still be open for a moment, in which the worker would answer.
  if (state_.get() == SessionState::kLost) return kSessionLost;
  header.opcode = command.opcode;
  header.thread = thread_number();
  // Header and body are sent as one piece. Bodies are small; tails (bytes to copy, parameters) are
  // not copied here.
  std::byte head[sizeof header + 1024];
  std::span<const std::byte> first;
  std::vector<std::byte> large;
  if (body.size() <= 1024) {
    std::memcpy(head, &header, sizeof header);
    if (!body.empty()) std::memcpy(head + sizeof header, body.data(), body.size());
    first = {head, sizeof header + body.size()};
  } else {
    large.resize(sizeof header + body.size());
    std::memcpy(large.data(), &header, sizeof header);
    std::memcpy(large.data() + sizeof header, body.data(), body.size());
    first = large;
  }
  std::optional<CancellationOff> off;  // a put over a network may block in a system call
  if (traits_.reach != transport::Reach::kThisMachine) off.emplace();
  std::lock_guard lock(order_mutex_);
  const uint64_t number = ++commands_;
  uint64_t room = room_of(command, traits().has_region_puts);
  if (room > 0 && is_marked(command)) ++room;
  if (timeline) {
    sent->position = timeline->count(room);
  } else if (room > 0) {
    timelines_.count_unplaced();
  }
  if (may_write(command, timeline, room)) mirrors_.note_write();
  const Status appended = commands_ring_->append(first, command.tail, wake);
  if (!appended.ok()) return lose(appended);
  sent->number = number;
  return CUDA_SUCCESS;
}

CUresult Session::post(const Route& route, const wire::Command& command, transport::Wake wake,
                       SentCommand* sent) {
  SentCommand unasked;
  if (!sent) sent = &unasked;
  if (synchronous_ || awaits_answers()) {
    Reply reply;
    return call(route, command, 0, &reply, sent);
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
  if (!acquire_slot(options, call)) return false;
  trace::CommandSpan& span = call->span.emplace(trace_, command.opcode, !options.at_once);
  call->call = next_call_.fetch_add(1, std::memory_order_relaxed);
  if (call->call == 0) call->call = next_call_.fetch_add(1, std::memory_order_relaxed);
  wire::CommandHeader header{};
  header.flags = span.flags();
  header.context = route.context;
  header.call = call->call;
  header.reply_slot = call->slot;
  header.reply_bytes = call->slot_bytes;
  call->result = send(header, route.timeline, command, options.wake, &call->sent);
  span.sent(call->sent.number);
  if (!options.at_once) call->span.reset();
  return true;
}

CUresult Session::finish(PendingCall& call, Reply* reply) {
  std::optional<trace::Span> wait;
  if (!call.span) wait.emplace("wait for an answer", "wait");
  const CUresult result = call.sent.is_sent() ? wait_for_reply(call, reply) : call.result;
  call.span.reset();
  if (!reply->session_) release_slot(call.slot);
  return result;
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
    // The command itself has been executed. The next push or wait fetches again, and tells.
    if (lost()) return kSessionLost;
  }
  return result;
}

bool Session::acquire_slot(const CallOptions& options, PendingCall* call) {
  const bool small = options.reply_bytes + sizeof(wire::ReplyHeader) + sizeof(uint64_t) <=
                     Window::kSmallReplyBytes;
  std::vector<uint32_t>& slots = small ? small_slots_ : large_slots_;
  const size_t all = small ? Window::kSmallReplyCount : Window::kLargeReplyCount;
  const size_t kept = options.patient ? 0 : all / 4;
  while (true) {
    {
      std::lock_guard lock(slots_mutex_);
      if (slots.size() > kept) {
        call->slot = slots.back();
        call->slot_bytes = small ? Window::kSmallReplyBytes : Window::kLargeReplyBytes;
        slots.pop_back();
        return true;
      }
    }
    if (!options.patient) return false;
    // All slots of this size are in use (kSmallReplyCount, kLargeReplyCount). One becomes free when
    // a reply is destroyed.
    const CancellationOff off;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void Session::release_slot(uint32_t offset) {
  std::lock_guard lock(slots_mutex_);
  (offset < Window::kLargeReplies ? small_slots_ : large_slots_).push_back(offset);
}

const std::atomic<uint64_t>& Session::client_word(uint64_t offset) const {
  return *reinterpret_cast<const std::atomic<uint64_t>*>(
      const_cast<transport::Link&>(*link_).window().data() + offset);
}

template <typename Ready>
CUresult Session::wait_until(const Ready& ready) {
  // An answer that needs no GPU work arrives within this time. After it, the thread yields the core
  // to others.
  constexpr auto kAnswer = std::chrono::microseconds(50);
  // In this order: the worker's last answer may come between the two.
  const bool over = lost();
  if (ready()) return CUDA_SUCCESS;
  if (over) return kSessionLost;
  const Clock::time_point begin = Clock::now();
  for (Clock::duration waited{0}; waited < spin_; waited = Clock::now() - begin) {
    for (int i = 0; i < 64; ++i) {
      if (ready()) return CUDA_SUCCESS;
      cpu_pause();
    }
    if (waited > kAnswer) std::this_thread::yield();
  }
  while (true) {
    const Status status = link_->wait(ready, Clock::now() + kForever);
    if (status.ok()) return CUDA_SUCCESS;
    if (status.code() != Code::kTimeout) return lose(status);
  }
}

CUresult Session::wait_for(const std::function<bool()>& ready) {
  const CancellationOff off;
  return wait_until(ready);
}

CUresult Session::wait_for_reply(const PendingCall& call, Reply* reply) {
  const CancellationOff off;
  const std::atomic<uint64_t>& stamp = client_word(call.slot + call.slot_bytes - sizeof(uint64_t));
  // Acquire pairs with the worker's put: once the stamp is visible, the body is too.
  const auto arrived = [&] {
    return wire::ReplyStamp::call(stamp.load(std::memory_order_acquire)) == call.call;
  };
  RCUDA_RETURN_IF_CUDA_ERROR(wait_until(arrived));
  const uint32_t body_bytes = wire::ReplyStamp::body_bytes(stamp.load(std::memory_order_acquire));
  if (body_bytes < sizeof(wire::ReplyHeader) || body_bytes > call.slot_bytes - sizeof(uint64_t)) {
    return lose(Status(Code::kProtocol, "the worker sent a reply of " + std::to_string(body_bytes) +
                                            " bytes into a slot of " +
                                            std::to_string(call.slot_bytes)));
  }
  const uint32_t padded = (body_bytes + 7) & ~7u;
  const std::byte* body =
      link_->window().data() + call.slot + call.slot_bytes - sizeof(uint64_t) - padded;
  wire::ReplyHeader header;
  std::memcpy(&header, body, sizeof header);
  reply->session_ = this;
  reply->slot_ = call.slot;
  reply->body_ = {body + sizeof header, body_bytes - sizeof header};
  events_->drain_output();
  return static_cast<CUresult>(header.result);
}

wire::ObjectId stream_id(const Route& route) {
  return route.timeline ? route.timeline->stream() : 0;
}

Reply::~Reply() {
  if (session_) session_->release_slot(slot_);
}

// ---- completion words --------------------------------------------------------------------------

bool Session::is_marked(const wire::Command& command) const {
  if (marks_.empty() || !command.is<wire::SignalBody>()) return false;
  wire::SignalBody signal;
  std::memcpy(&signal, command.body.data(), sizeof signal);
  return signal.word < marks_.size();
}

bool Session::word_reached(const Word& word, CUresult* result) const {
  const uint64_t value =
      client_word(Window::kCompletionWords + 8ull * word.index).load(std::memory_order_acquire);
  if (wire::CompletionWord::sequence(value) >= word.sequence) {
    *result = static_cast<CUresult>(wire::CompletionWord::result(value));
    return true;
  }
  // The GPU's mark is there before the worker's word.
  if (word.index >= marks_.size() || word.sequence == 0) return false;
  const auto& mark = reinterpret_cast<const std::atomic<uint64_t>&>(marks_[word.index]);
  *result = CUDA_SUCCESS;
  return mark.load(std::memory_order_acquire) == word.sequence;
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

uint64_t Session::commands() {
  std::lock_guard lock(order_mutex_);
  return commands_;
}

// ---- errors and the end ------------------------------------------------------------------------

CUresult Session::take_error() {
  if (lost()) return kSessionLost;
  const uint64_t error = client_word(Window::kErrorWord).load(std::memory_order_acquire);
  if (error == 0) [[likely]]
    return CUDA_SUCCESS;
  const auto result = static_cast<CUresult>(wire::CompletionWord::result(error));
  if (result == kSessionLost || cuda::is_sticky(result)) return result;
  // The error leaves the context usable, so it is reported once. Another thread may have reported a
  // later error by now.
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
    std::lock_guard lock(loss_mutex_);
    if (is_over(state_.get())) return kSessionLost;
    // First: a program may end as soon as another thread's call has returned the error.
    RCUDA_ERROR("%s is lost: %s; every call on its devices returns an error from now on",
                name_.c_str(), why.message().c_str());
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
                "the worker returned %s of %llu bytes at 0x%llx, outside of its device addresses",
                what, static_cast<unsigned long long>(bytes),
                static_cast<unsigned long long>(address));
  (void)lose(Status(Code::kProtocol, text));
  return false;
}

void Session::abandon() noexcept { link_->abandon(); }

void Session::keep_alive() { (void)post(in_context(0), wire::PingBody{}); }

void Session::end() {
  if (lost()) return;
  if (trace::on()) await_trace();
  if (!state_.move(SessionEvent::kEnd, name_)) return;
  events_->forget_callbacks();
  SentCommand sent;
  (void)send({}, nullptr, wire::SessionEndBody{}, transport::Wake::kNow, &sent);
  if (sent.is_sent()) link_->close();
}

}  // namespace rcuda::client
