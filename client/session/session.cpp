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
    (void)call(in_context(0), static_cast<uint16_t>(wire::Custom::kPing), {}, {}, 0, &reply);
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
bool may_write(const wire::CommandHeader& header, const Timeline* timeline, uint64_t room) {
  switch (header.opcode) {
    case static_cast<uint16_t>(wire::Custom::kSignal):
    case static_cast<uint16_t>(wire::Custom::kCopyInline):  // note_write()
    case static_cast<uint16_t>(wire::Custom::kCopyStaged):
      return false;
    default:
      return room > 0 && !api::traits_of(header.opcode).waits_for_device &&
             !is_of_fetches(timeline);
  }
}

// The number of places that the command takes in a driver's queue. `moves_bytes`: copies of
// page-locked memory move its bytes in parts. Each takes two more than one place for all: a mark
// and an event, a wait or a host function and a further copy. A slot of the staging region that is
// filled behind the command is waited for.
uint64_t room_of(uint16_t opcode, std::span<const std::byte> body, bool moves_bytes) {
  const api::CommandTraits& traits = api::traits_of(opcode);
  if (moves_bytes && opcode == static_cast<uint16_t>(wire::Custom::kCopy)) {
    wire::CopyBody copy;
    std::memcpy(&copy, body.data(), sizeof copy);
    return 2 * wire::parts_of(copy.bytes) + room_of(opcode, body, false);
  }
  if (moves_bytes && opcode == static_cast<uint16_t>(wire::Custom::kCopyStaged)) {
    wire::CopyStagedBody copy;
    std::memcpy(&copy, body.data(), sizeof copy);
    return (copy.to_device && copy.immediate ? 1 : 0) + room_of(opcode, body, false);
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

CUresult Session::send(const wire::CommandHeader& header, Timeline* timeline,
                       std::span<const std::byte> body, std::span<const std::byte> tail,
                       transport::Wake wake, Sent* sent) {
  if (lacking_.contains(header.opcode)) [[unlikely]] {
    return lacking_.refuse(header.opcode, name_);
  }
  if (body.size() + tail.size() + sizeof header > wire::kMaxCommandBytes) {
    RCUDA_ERROR("a command (opcode %u) of %zu bytes exceeds the limit of %u: it is not sent",
                header.opcode, body.size() + tail.size() + sizeof header, wire::kMaxCommandBytes);
    return CUDA_ERROR_INVALID_VALUE;
  }
  // The Link may still be open for a moment, in which the worker would answer.
  if (state_.get() == SessionState::kLost) return kSessionLost;
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
  sent->number = ++commands_;
  uint64_t room = room_of(header.opcode, body, traits().has_region_puts);
  if (room > 0 && is_marked(header.opcode, body)) ++room;
  if (timeline) {
    sent->position = timeline->count(room);
  } else if (room > 0) {
    timelines_.count_unplaced();
  }
  if (may_write(header, timeline, room)) work_sent_.fetch_add(1, std::memory_order_relaxed);
  const Status appended = commands_ring_->append(first, tail, wake);
  return appended.ok() ? CUDA_SUCCESS : lose(appended);
}

CUresult Session::post(const Target& target, uint16_t opcode, std::span<const std::byte> body,
                       std::span<const std::byte> tail, transport::Wake wake, uint64_t* position) {
  if (synchronous_ || awaits_answers()) {
    Reply reply;
    return call(target, opcode, body, tail, 0, &reply, position);
  }
  trace::CommandSpan span(trace_, opcode, true);
  wire::CommandHeader header{};
  header.opcode = opcode;
  header.flags = span.flags();
  header.context = target.context;
  header.thread = thread_number();
  Sent sent;
  const CUresult result = send(header, target.timeline, body, tail, wake, &sent);
  if (result != CUDA_SUCCESS) return result;
  span.sent(sent.number);
  if (position) *position = sent.position;
  return CUDA_SUCCESS;
}

bool Session::answers(uint16_t opcode) const {
  return synchronous_ || awaits_answers() || lacking_.contains(opcode);
}

bool Session::was_sent(uint16_t opcode, CUresult result) {
  if (result == CUDA_SUCCESS) return true;
  return (synchronous_ || awaits_answers()) && !lacking_.contains(opcode) && !lost();
}

bool Session::begin(const Target& target, uint16_t opcode, std::span<const std::byte> body,
                    std::span<const std::byte> tail, size_t reply_bytes, bool patient,
                    PendingCall* call, bool at_once, transport::Wake wake) {
  if (!acquire_slot(reply_bytes, patient, call)) return false;
  trace::CommandSpan& span = call->span.emplace(trace_, opcode, !at_once);
  call->call = next_call_.fetch_add(1, std::memory_order_relaxed);
  if (call->call == 0) call->call = next_call_.fetch_add(1, std::memory_order_relaxed);
  wire::CommandHeader header{};
  header.opcode = opcode;
  header.flags = span.flags();
  header.context = target.context;
  header.call = call->call;
  header.reply_slot = call->slot;
  header.reply_bytes = call->slot_bytes;
  header.thread = thread_number();
  Sent sent;
  call->sent = send(header, target.timeline, body, tail, wake, &sent);
  call->position = sent.position;
  span.sent(sent.number);
  if (!at_once) call->span.reset();
  return true;
}

CUresult Session::finish(PendingCall& call, Reply* reply) {
  std::optional<trace::Span> wait;
  if (!call.span) wait.emplace("wait for an answer", "wait");
  const CUresult result = call.sent == CUDA_SUCCESS ? wait_for_reply(call, reply) : call.sent;
  call.span.reset();
  if (!reply->session_) release_slot(call.slot);
  return result;
}

CUresult Session::call(const Target& target, uint16_t opcode, std::span<const std::byte> body,
                       std::span<const std::byte> tail, size_t reply_bytes, Reply* reply,
                       uint64_t* position) {
  PendingCall call;
  const bool waits = api::traits_of(opcode).waits_for_device;
  if (waits && !timelines_.is_quiet(Timelines::Scope::kContext, target.context)) show_writes();
  const uint64_t work = work_sent_.load(std::memory_order_relaxed);
  begin(target, opcode, body, tail, reply_bytes, true, &call, true);
  if (position) *position = call.position;
  const CUresult result = finish(call, reply);
  if (result != CUDA_SUCCESS) {
    note_refusal(result);
  } else if (waits) {
    return fetch_mirrors(target.context, work);
  }
  return result;
}

CUresult Session::fetch_mirrors(wire::ObjectId context, uint64_t work) {
  const MirrorHooks* const hooks = mirror_hooks_.load(std::memory_order_acquire);
  if (!hooks) return CUDA_SUCCESS;
  const Fetched fetch{context, 0, work};
  std::unique_lock lock(fetched_mutex_);
  if (fetched_ == fetch) return CUDA_SUCCESS;
  lock.unlock();
  const CUresult result = hooks->pull(*this, nullptr);
  // The command itself has been executed. The next push or wait fetches again, and tells.
  if (result != CUDA_SUCCESS) return lost() ? kSessionLost : CUDA_SUCCESS;
  lock.lock();
  fetched_ = fetch;
  return CUDA_SUCCESS;
}

CUresult Session::await_writes(const Target& target) {
  const Fetched wait{target.context, stream_id(target), work_sent_.load(std::memory_order_relaxed)};
  std::unique_lock lock(fetched_mutex_);
  if (awaited_ == wait) return CUDA_SUCCESS;
  lock.unlock();
  RCUDA_RETURN_IF_CUDA_ERROR(synchronize(target));
  lock.lock();
  awaited_ = wait;
  return CUDA_SUCCESS;
}

bool Session::acquire_slot(size_t reply_bytes, bool patient, PendingCall* call) {
  const bool small =
      reply_bytes + sizeof(wire::ReplyHeader) + sizeof(uint64_t) <= Window::kSmallReplyBytes;
  std::vector<uint32_t>& slots = small ? small_slots_ : large_slots_;
  const size_t all = small ? Window::kSmallReplyCount : Window::kLargeReplyCount;
  const size_t kept = patient ? 0 : all / 4;
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
    if (!patient) return false;
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

wire::ObjectId stream_id(const Target& target) {
  return target.timeline ? target.timeline->stream() : 0;
}

Reply::~Reply() {
  if (session_) session_->release_slot(slot_);
}

// ---- completion words --------------------------------------------------------------------------

bool Session::is_marked(uint16_t opcode, std::span<const std::byte> body) const {
  if (marks_.empty() || opcode != static_cast<uint16_t>(wire::Custom::kSignal)) return false;
  wire::SignalBody signal;
  std::memcpy(&signal, body.data(), sizeof signal);
  return signal.word < marks_.size();
}

bool Session::word_reached(uint32_t index, uint64_t sequence, CUresult* result) const {
  const uint64_t value =
      client_word(Window::kCompletionWords + 8ull * index).load(std::memory_order_acquire);
  if (wire::CompletionWord::sequence(value) >= sequence) {
    *result = static_cast<CUresult>(wire::CompletionWord::result(value));
    return true;
  }
  // The GPU's mark is there before the worker's word.
  if (index >= marks_.size() || sequence == 0) return false;
  const auto& mark = reinterpret_cast<const std::atomic<uint64_t>&>(marks_[index]);
  *result = CUDA_SUCCESS;
  return mark.load(std::memory_order_acquire) == sequence;
}

CUresult Session::wait_word(uint32_t index, uint64_t sequence, const Timeline* of) {
  const CancellationOff off;
  trace::Span span("wait for the worker's word", "wait");
  CUresult result = CUDA_SUCCESS;
  const auto reached = [&] { return word_reached(index, sequence, &result); };
  RCUDA_RETURN_IF_CUDA_ERROR(wait_until(reached));
  if (!is_of_fetches(of)) events_->drain_output();
  return result;
}

CUresult Session::post_and_wait(const Target& target, wire::Custom opcode,
                                std::span<const std::byte> body, Word word) {
  const std::optional<Timelines::Positions> covered =
      opcode == wire::Custom::kSynchronizeContext
          ? timelines_.now(Timelines::Scope::kContext, target.context)
          : covered_by_wait(target);
  const bool only_waits =
      opcode == wire::Custom::kSignal || opcode == wire::Custom::kSynchronizeContext;
  // A copy may block the worker's driver, and what follows it in the ring, until a kernel has ended
  // that waits for a write of the host.
  if (!only_waits) show_writes();
  // If the command is not sent, the session is lost, which ends the fetches as well.
  std::unique_ptr<FetchesBehind> behind;
  if (!lacking_.contains(static_cast<uint16_t>(opcode))) behind = ask_behind(word);
  uint64_t position = 0;
  CUresult result =
      post(target, static_cast<uint16_t>(opcode), body, {}, transport::Wake::kNow, &position);
  if (!was_sent(static_cast<uint16_t>(opcode), result)) {
    --word.sequence;  // no command carries this sequence
    words_.release(word);
    return lost() ? kSessionLost : result;
  }
  if (only_waits) show_writes();  // compares while the worker waits
  // The worker writes the word even if it refuses the command.
  const CUresult waited = wait_word(word.index, word.sequence);
  words_.release(word);
  timelines_.add_news();
  if (waited == CUDA_SUCCESS) {
    if (covered) timelines_.waited(*covered);
    if (target.timeline) target.timeline->waited(position);
  }
  if (result == CUDA_SUCCESS) result = waited;
  return result == CUDA_SUCCESS ? finish_wait(behind.get()) : result;
}

void Session::show_writes(bool often) {
  if (const MirrorHooks* const hooks = mirror_hooks_.load(std::memory_order_acquire)) {
    hooks->show(*this, often);
  }
}

std::unique_ptr<FetchesBehind> Session::ask_behind(Word word) {
  const MirrorHooks* const hooks = mirror_hooks_.load(std::memory_order_acquire);
  if (!hooks) return nullptr;
  const uint64_t waits = timelines_.waits_of_others();
  std::unique_ptr<FetchesBehind> behind = hooks->ask(*this, word);
  if (behind) behind->waits_of_others = waits;
  return behind;
}

std::unique_ptr<FetchesBehind> Session::ask_behind(const Target& target) {
  if (!mirror_hooks_.load(std::memory_order_acquire)) return nullptr;
  show_writes();
  Word word = words_.acquire();
  ++word.sequence;
  std::unique_ptr<FetchesBehind> behind = ask_behind(word);
  if (!behind) {
    --word.sequence;  // no command carries this sequence
    words_.release(word);
    return nullptr;
  }
  behind->words = &words_;
  behind->word = word;
  // If it is not sent, the session is lost, which ends the fetches as well.
  const wire::SignalBody body{stream_id(target), word.index, word.sequence};
  (void)post(target, static_cast<uint16_t>(wire::Custom::kSignal),
             std::as_bytes(std::span(&body, 1)), {}, transport::Wake::kNo);
  return behind;
}

CUresult Session::finish_wait(FetchesBehind* behind) {
  const MirrorHooks* const hooks = mirror_hooks_.load(std::memory_order_acquire);
  if (hooks) {
    const uint64_t waits = timelines_.waits();
    const uint64_t of_others = timelines_.waits_of_others();
    RCUDA_RETURN_IF_CUDA_ERROR(hooks->pull(*this, behind));
    // What was asked for with this wait does not show what other threads have waited for since.
    if (!behind || behind->waits_of_others == of_others) shown_.store(waits);
  }
  return take_error();
}

CUresult Session::finish_awaited() {
  const bool shown = shown_.load() == timelines_.waits();
  if (shown || !mirror_hooks_.load(std::memory_order_acquire)) return take_error();
  return finish_wait();
}

std::optional<Timelines::Positions> Session::covered_by_wait(const Target& target) {
  if (target.timeline && target.timeline->stream() != 0) return std::nullopt;
  return timelines_.now(Timelines::Scope::kDefaultStream, target.context);
}

bool Session::is_awaited(const Target& target) {
  if (target.timeline && target.timeline->stream() != 0) return target.timeline->is_awaited();
  return timelines_.is_awaited(Timelines::Scope::kDefaultStream, target.context);
}

CUresult Session::synchronize(const Target& target) {
  if (is_awaited(target)) return finish_awaited();
  return post_and_wait(target, wire::Custom::kSignal, wire::SignalBody{stream_id(target), 0, 0});
}

CUresult Session::synchronize_context(wire::ObjectId context) {
  if (timelines_.is_awaited(Timelines::Scope::kContext, context)) return finish_awaited();
  return post_and_wait(in_context(context), wire::Custom::kSynchronizeContext, wire::SignalBody{});
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

void Session::keep_alive() {
  (void)post(in_context(0), static_cast<uint16_t>(wire::Custom::kPing), {});
}

void Session::end() {
  if (lost()) return;
  if (trace::on()) await_trace();
  if (!state_.move(SessionEvent::kEnd, name_)) return;
  events_->forget_callbacks();
  wire::CommandHeader header{};
  header.opcode = static_cast<uint16_t>(wire::Custom::kSessionEnd);
  Sent sent;
  if (send(header, nullptr, {}, {}, transport::Wake::kNow, &sent) == CUDA_SUCCESS) link_->close();
}

}  // namespace rcuda::client
