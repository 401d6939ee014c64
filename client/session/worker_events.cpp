#include "client/session/worker_events.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include <pthread.h>

#include "client/session/reply.h"
#include "common/base/log.h"
#include "common/base/peer_order.h"
#include "common/base/printable.h"
#include "common/base/start_thread.h"

namespace rcuda::client {
namespace {

thread_local bool running_host_function = false;

using Clock = std::chrono::steady_clock;
constexpr auto kForever = std::chrono::hours(24);

template <typename Body>
bool read_body(std::span<const std::byte> frame, Body* body) {
  if (frame.size() < sizeof(Body)) return false;
  std::memcpy(body, frame.data(), sizeof(Body));
  return true;
}

void print(std::span<const std::byte> frame) {
  wire::OutputEvent event;
  if (!read_body(frame, &event) || event.text_bytes > frame.size() - sizeof event) {
    RCUDA_WARN("output of a kernel is lost: the worker sent it in a malformed event of %zu bytes",
               frame.size());
    return;
  }
  std::FILE* stream = event.is_stderr ? stderr : stdout;
  std::fwrite(frame.data() + sizeof event, 1, event.text_bytes, stream);
  // Flushes as a local driver does (580 on an H100), even if the program has buffered the stream.
  std::fflush(stream);
}

}  // namespace

bool in_host_function() { return running_host_function; }

WorkerEvents::WorkerEvents(transport::Link& link)
    : link_(link), ring_(link, wire::kEventRingLayout) {}

Status WorkerEvents::start() {
  return start_thread(&event_thread_, [this] { run_events(); });
}

WorkerEvents::~WorkerEvents() {
  stop_.store(true);
  link_.interrupt();
  if (event_thread_.joinable()) event_thread_.join();
  {
    MutexLock lock(mutex_);
    changed_.notify_all();
  }
  for (Runner* runner : {&host_functions_, &copies_, &releases_}) {
    if (runner->thread.joinable()) runner->thread.join();
  }
}

Result<wire::ReadyEvent> WorkerEvents::ready(Clock::time_point deadline) {
  MutexLock lock(mutex_);
  while (!is_ready_) {
    if (Status status = link_.status(); !status.ok()) return status;
    if (Clock::now() >= deadline) {
      return Status(Code::kTimeout,
                    "the worker did not report in time that it is ready; see the server's log");
    }
    changed_.wait_until(lock, std::min(deadline, Clock::now() + std::chrono::milliseconds(50)));
  }
  return ready_;
}

Result<uint64_t> WorkerEvents::add_callback(std::function<void(CUresult)> function, bool always) {
  MutexLock lock(mutex_);
  RCUDA_RETURN_IF_ERROR(start_locked(host_functions_));
  const uint64_t id = next_callback_++;
  callbacks_.emplace(id, Once{std::move(function), always});
  return id;
}

Result<uint64_t> WorkerEvents::add_graph_callback(GraphCallback callback) {
  auto shared = std::make_shared<const GraphCallback>(std::move(callback));
  MutexLock lock(mutex_);
  RCUDA_RETURN_IF_ERROR(start_locked(host_functions_));
  if (shared->is_internal) {
    RCUDA_RETURN_IF_ERROR(start_locked(copies_));
    RCUDA_RETURN_IF_ERROR(start_locked(releases_));
  }
  const uint64_t id = next_callback_++;
  graph_callbacks_.emplace(id, std::move(shared));
  return id;
}

bool WorkerEvents::host_function_given(uint64_t id, CUDA_HOST_NODE_PARAMS* given) {
  MutexLock lock(mutex_);
  const auto found = graph_callbacks_.find(id);
  if (found == graph_callbacks_.end() || !found->second->given.fn) return false;
  *given = found->second->given;
  return true;
}

bool WorkerEvents::copy_given(uint64_t id, CUDA_MEMCPY3D* given) {
  MutexLock lock(mutex_);
  const auto found = graph_callbacks_.find(id);
  if (found == graph_callbacks_.end() || !found->second->copy) return false;
  *given = *found->second->copy;
  return true;
}

bool WorkerEvents::has_had_callbacks() {
  MutexLock lock(mutex_);
  return next_callback_ != kFirstCallback;
}

bool WorkerEvents::remove_callback(uint64_t id) {
  // Destroyed after the lock is released: destroying its contents may wait for the worker, and the
  // event thread needs this lock meanwhile.
  Shared forgotten;
  MutexLock lock(mutex_);
  if (callbacks_.erase(id) != 0) return true;
  const auto found = graph_callbacks_.find(id);
  if (found == graph_callbacks_.end()) return false;
  forgotten = std::move(found->second);
  graph_callbacks_.erase(found);
  return true;
}

void WorkerEvents::forget_callbacks() {
  MutexLock lock(mutex_);
  callbacks_.clear();
}

Status WorkerEvents::start_host_functions() {
  MutexLock lock(mutex_);
  return start_locked(host_functions_);
}

Status WorkerEvents::start_locked(Runner& runner) {
  if (runner.thread.joinable()) return {};
  Status started = start_thread(&runner.thread, [this, &runner] { run(runner); });
  if (!started.ok()) {
    RCUDA_ERROR("%s cannot run, because their thread cannot be started: %s",
                runner.runs_application ? "host functions of the program" : "copy nodes of graphs",
                started.context().c_str());
  }
  return started;
}

void WorkerEvents::run_later(std::function<void()> function) {
  MutexLock lock(mutex_);
  enqueue(host_functions_, std::move(function));
}

void WorkerEvents::set_trace_sink(TraceSink sink) {
  MutexLock lock(mutex_);
  trace_sink_ = std::move(sink);
}

void WorkerEvents::drain_output() {
  // For ThreadSanitizer (peer_order.h): pairs with before_peer() in acknowledge(). The caller's
  // wait may have covered host functions.
  after_peer(&link_);
  constexpr int kYields = 200;  // enough for printing, unless the reader of the output is slow
  const uint64_t since = handled_.load(std::memory_order_acquire);
  for (int i = 0; i < kYields; ++i) {
    if (is_drained(since)) [[likely]]
      return;
    std::this_thread::yield();
  }
  MutexLock lock(drained_mutex_);
  while (!is_drained(since) && link_.status().ok()) {
    drained_.wait_for(lock, std::chrono::milliseconds(50));  // a broken Link does not notify
  }
}

// The header of a frame that has arrived is nonzero (ring.h), and the worker put the frame before
// the word or reply that the caller has just seen. So a zero header means that no frame is pending,
// or that the event thread has taken it. In the second case the caller sees either `taking_`, which
// is set before the header is cleared, or the new `handled_`, which is set before `taking_` is
// cleared.
bool WorkerEvents::is_drained(uint64_t since) const {
  constexpr wire::RingLayout kRing = wire::kEventRingLayout;
  const uint64_t handled = handled_.load(std::memory_order_acquire);
  // After two laps, all events that were in the ring at the beginning are handled. Without this
  // limit, the caller would not return during a steady flow of events.
  if (handled - since >= 2 * kRing.ring_bytes) return true;
  const std::byte* at = link_.window().data() + kRing.ring_offset + handled % kRing.ring_bytes;
  const auto* header = reinterpret_cast<const std::atomic<uint64_t>*>(at);
  return header->load(std::memory_order_acquire) == 0 && !taking_.load(std::memory_order_acquire) &&
         handled_.load(std::memory_order_acquire) == handled;
}

void WorkerEvents::run_events() {
  pthread_setname_np(pthread_self(), "rcuda-events");
  bool readable = true;
  while (readable && !stop_.load()) {
    const Status status = link_.wait([this] { return stop_.load() || ring_.pending(); },
                                     Clock::now() + kForever, transport::WokenBy::kNotAnswers);
    if (!status.ok() && status.code() != Code::kTimeout) break;
    while (!stop_.load() && readable) {
      // Must precede try_next(), which clears a header.
      taking_.store(true, std::memory_order_relaxed);
      Result<std::span<const std::byte>> frame = ring_.try_next();
      const bool any = frame && !frame->empty();
      if (any) handle(*frame);
      handled_.store(ring_.consumed(), std::memory_order_release);
      taking_.store(false, std::memory_order_release);
      if (!frame) {
        lose(Status(frame.status()).with_context("cannot read the worker's event ring"));
        readable = false;  // an unreadable event stays in the ring
      }
      {
        // Take the mutex once, so that a thread that has just checked is_drained() sleeps before
        // the notification, not after it.
        MutexLock lock(drained_mutex_);
      }
      drained_.notify_all();
      if (!any) break;
    }
  }
  if (!stop_.load()) call_after_loss();  // after an intended end, no callbacks are left
  // Threads that wait in ready() check the Link's status.
  MutexLock lock(mutex_);
  changed_.notify_all();
}

void WorkerEvents::lose(const Status& why) {
  if (loss_sink_) {
    loss_sink_(why);
  } else {
    link_.close();
  }
}

void WorkerEvents::call_after_loss() {
  MutexLock lock(mutex_);
  for (auto next = callbacks_.begin(); next != callbacks_.end();) {
    const auto callback = next++;
    if (!callback->second.always) continue;
    enqueue(host_functions_,
            [function = std::move(callback->second.function)] { function(kSessionLost); });
    callbacks_.erase(callback);
  }
}

void WorkerEvents::handle(std::span<const std::byte> frame) {
  wire::EventHeader header;
  if (!read_body(frame, &header)) return;
  switch (static_cast<uint32_t>(header.event)) {
    case static_cast<uint32_t>(wire::Event::kReady): {
      MutexLock lock(mutex_);
      is_ready_ = read_body(frame, &ready_);
      changed_.notify_all();
      return;
    }
    case static_cast<uint32_t>(wire::Event::kHostCallback): {
      wire::HostCallbackEvent event;
      if (!read_body(frame, &event) || event.slot >= wire::WorkerWindow::kCallbackSlots) break;
      host_callback(event);
      return;
    }
    case static_cast<uint32_t>(wire::Event::kReleased): {
      wire::ReleasedEvent event;
      if (!read_body(frame, &event)) break;
      released(event.callback);
      return;
    }
    case static_cast<uint32_t>(wire::Event::kOutput):
      print(frame);
      return;
    case static_cast<uint32_t>(wire::Event::kNotice):
      if (!notice(frame)) break;
      return;
    case static_cast<uint32_t>(wire::Event::kTrace): {
      const auto events = frame.subspan(sizeof header);
      MutexLock lock(mutex_);
      if (trace_sink_) {
        trace_sink_({reinterpret_cast<const wire::TraceEvent*>(events.data()),
                     events.size() / sizeof(wire::TraceEvent)});
      }
      return;
    }
  }
  RCUDA_WARN(
      "the worker sent an unknown or malformed event (kind %u, %zu bytes), which is ignored; "
      "install the same build of rcuda on both sides",
      static_cast<unsigned>(header.event), frame.size());
}

bool WorkerEvents::notice(std::span<const std::byte> frame) {
  wire::NoticeEvent event;
  if (!read_body(frame, &event) || event.ends > 1 ||
      event.text_bytes > wire::NoticeEvent::kMostTextBytes ||
      event.text_bytes > frame.size() - sizeof event) {
    return false;
  }
  const auto* text = reinterpret_cast<const char*>(frame.data() + sizeof event);
  if (notice_sink_) notice_sink_(event.ends == 1, printable(std::string(text, event.text_bytes)));
  return true;
}

void WorkerEvents::host_callback(const wire::HostCallbackEvent& event) {
  std::function<void(CUresult)> once;
  Shared shared;
  MutexLock lock(mutex_);
  if (requested_[event.slot]) {
    lock.unlock();
    return lose(Status(Code::kProtocol,
                       "the worker requested host function " + std::to_string(event.callback) +
                           " in callback slot " + std::to_string(event.slot) +
                           " before the slot's previous request was acknowledged"));
  }
  requested_.set(event.slot);
  if (auto found = callbacks_.find(event.callback); found != callbacks_.end()) {
    once = std::move(found->second.function);
    callbacks_.erase(found);
  } else if (auto kept = graph_callbacks_.find(event.callback); kept != graph_callbacks_.end()) {
    shared = kept->second;
  }
  if (shared && shared->is_internal) {
    enqueue(copies_, [this, event, shared = std::move(shared)]() mutable {
      shared->function();
      // Drop this reference before the acknowledgement. Until then the worker's graph holds the
      // callback, so this reference is not the last, and the callback's destructor does not run
      // here.
      shared.reset();
      acknowledge(event);
    });
    return;
  }
  enqueue(host_functions_, [this, event, once = std::move(once), shared = std::move(shared)] {
    if (event.loan != 0) mirrors_arrived_(event.loan);
    if (once) {
      once(static_cast<CUresult>(event.status));
    } else if (shared && shared->function) {
      shared->function();
    } else {
      RCUDA_WARN(
          "the worker requested host function %llu, which does not exist; the stream "
          "continues without it",
          static_cast<unsigned long long>(event.callback));
    }
    if (event.loan != 0) mirrors_leave_(event.loan);
    acknowledge(event);
  });
}

void WorkerEvents::released(uint64_t id) {
  MutexLock lock(mutex_);
  const auto found = graph_callbacks_.find(id);
  if (found == graph_callbacks_.end()) return;
  Shared shared = std::move(found->second);
  graph_callbacks_.erase(found);
  // Another thread destroys the callback: the event thread must not wait for the application's code
  // or for the worker.
  Runner& runner = shared->is_internal ? releases_ : host_functions_;
  enqueue(runner, [shared = std::move(shared)]() mutable {
    if (shared->released) shared->released();
    shared.reset();
  });
}

void WorkerEvents::acknowledge(const wire::HostCallbackEvent& event) {
  const uint64_t sequence = event.sequence;
  {
    MutexLock lock(mutex_);
    requested_.reset(event.slot);
  }
  before_peer(&link_);
  // If put() fails, the Link is lost. The session's next call then logs the loss.
  (void)link_.put(wire::WorkerWindow::kCallbackAcks + 8ull * event.slot,
                  std::as_bytes(std::span(&sequence, 1)), {}, transport::Wake::kYes);
}

void WorkerEvents::enqueue(Runner& runner, std::function<void()> work) {
  // Registering a function starts its thread. So the thread is missing only if the worker sends an
  // unregistered id.
  if (const Status started = start_locked(runner); !started.ok()) return lose(started);
  runner.pending.push_back(std::move(work));
  changed_.notify_all();
}

void WorkerEvents::run(Runner& runner) {
  pthread_setname_np(pthread_self(), runner.name);
  running_host_function = runner.runs_application;
  MutexLock lock(mutex_);
  while (true) {
    changed_.wait(lock,
                  [&]() RCUDA_REQUIRES(mutex_) { return stop_.load() || !runner.pending.empty(); });
    if (stop_.load()) return;
    std::function<void()> work = std::move(runner.pending.front());
    runner.pending.pop_front();
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
}

}  // namespace rcuda::client
