#include "client/session/event_thread.h"

#include <cstdio>
#include <cstring>
#include <utility>

#include <pthread.h>

#include "client/session/session.h"
#include "common/base/log.h"
#include "common/base/peer_order.h"
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
    RCUDA_WARN("a malformed output event was dropped");
    return;
  }
  std::FILE* stream = event.is_stderr ? stderr : stdout;
  std::fwrite(frame.data() + sizeof event, 1, event.text_bytes, stream);
}

}  // namespace

bool in_host_function() { return running_host_function; }

EventThread::EventThread(transport::Link& link)
    : link_(link), ring_(link, wire::kEventRingLayout), handled_up_to_(ring_.next_offset()) {}

Status EventThread::start() {
  return start_thread(&event_thread_, [this] { run_events(); });
}

EventThread::~EventThread() {
  stop_.store(true);
  link_.interrupt();
  if (event_thread_.joinable()) event_thread_.join();
  {
    std::lock_guard lock(mutex_);
    changed_.notify_all();
  }
  if (callback_thread_.joinable()) callback_thread_.join();
}

Result<wire::ReadyEvent> EventThread::ready(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  while (!is_ready_) {
    if (Status status = link_.status(); !status.ok()) return status;
    if (Clock::now() >= deadline) {
      return Status(Code::kTimeout, "the worker did not say that it is ready");
    }
    changed_.wait_until(lock, std::min(deadline, Clock::now() + std::chrono::milliseconds(50)));
  }
  return ready_;
}

Result<uint64_t> EventThread::add_callback(std::function<void(CUresult)> function, bool always) {
  std::lock_guard lock(mutex_);
  RCUDA_RETURN_IF_ERROR(start_callbacks_locked());
  const uint64_t id = next_callback_++;
  callbacks_.emplace(id, Once{std::move(function), always});
  return id;
}

Result<uint64_t> EventThread::add_graph_callback(GraphCallback callback) {
  auto shared = std::make_shared<const GraphCallback>(std::move(callback));
  std::lock_guard lock(mutex_);
  RCUDA_RETURN_IF_ERROR(start_callbacks_locked());
  const uint64_t id = next_callback_++;
  graph_callbacks_.emplace(id, std::move(shared));
  return id;
}

bool EventThread::host_function_given(uint64_t id, CUDA_HOST_NODE_PARAMS* given) {
  std::lock_guard lock(mutex_);
  const auto found = graph_callbacks_.find(id);
  if (found == graph_callbacks_.end() || !found->second->given.fn) return false;
  *given = found->second->given;
  return true;
}

bool EventThread::copy_given(uint64_t id, CUDA_MEMCPY3D* given) {
  std::lock_guard lock(mutex_);
  const auto found = graph_callbacks_.find(id);
  if (found == graph_callbacks_.end() || !found->second->copy) return false;
  *given = *found->second->copy;
  return true;
}

bool EventThread::remove_callback(uint64_t id) {
  Shared forgotten;  // outlives the lock: what it owns may need this thread to go
  std::lock_guard lock(mutex_);
  if (callbacks_.erase(id) != 0) return true;
  const auto found = graph_callbacks_.find(id);
  if (found == graph_callbacks_.end()) return false;
  forgotten = std::move(found->second);
  graph_callbacks_.erase(found);
  return true;
}

void EventThread::forget_callbacks() {
  std::lock_guard lock(mutex_);
  callbacks_.clear();
}

Status EventThread::start_host_functions() {
  std::lock_guard lock(mutex_);
  return start_callbacks_locked();
}

Status EventThread::start_callbacks_locked() {
  if (callback_thread_.joinable()) return {};
  Status started = start_thread(&callback_thread_, [this] { run_callbacks(); });
  if (!started.ok()) RCUDA_ERROR("no host function can run: %s", started.context().c_str());
  return started;
}

void EventThread::run_later(std::function<void()> function) {
  std::unique_lock lock(mutex_);
  enqueue(std::move(function), lock);
}

void EventThread::set_trace_sink(TraceSink sink) {
  std::lock_guard lock(mutex_);
  trace_sink_ = std::move(sink);
}

void EventThread::drain_output() {
  after_peer(&link_);  // host functions that the wait was for
  // The header of a frame that has arrived is nonzero (ring.h), and its put came before the word or
  // reply that the caller has just seen.
  while (link_.status().ok()) {
    const uint64_t offset = handled_up_to_.load(std::memory_order_acquire);
    const auto* header =
        reinterpret_cast<const std::atomic<uint64_t>*>(link_.window().data() + offset);
    if (header->load(std::memory_order_acquire) == 0) return;
    std::this_thread::yield();
  }
}

void EventThread::run_events() {
  pthread_setname_np(pthread_self(), "rcuda-events");
  bool readable = true;
  while (readable && !stop_.load()) {
    const Status status =
        link_.wait([this] { return stop_.load() || ring_.pending(); }, Clock::now() + kForever);
    if (!status.ok() && status.code() != Code::kTimeout) break;
    while (!stop_.load()) {
      Result<std::span<const std::byte>> frame = ring_.try_next();
      if (!frame) {
        RCUDA_ERROR("the worker's events cannot be read: %s", frame.status().message().c_str());
        link_.close();
        readable = false;  // what cannot be read stays in the ring
        break;
      }
      if (frame->empty()) break;
      handle(*frame);
      handled_up_to_.store(ring_.next_offset(), std::memory_order_release);
    }
  }
  if (!stop_.load()) call_after_loss();  // or at an end that is intended, when there is none left
  // Waiters of ready() look at the Link's status.
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void EventThread::call_after_loss() {
  std::unique_lock lock(mutex_);
  for (auto next = callbacks_.begin(); next != callbacks_.end();) {
    const auto callback = next++;
    if (!callback->second.always) continue;
    enqueue([function = std::move(callback->second.function)] { function(kSessionLost); }, lock);
    callbacks_.erase(callback);
  }
}

void EventThread::handle(std::span<const std::byte> frame) {
  wire::EventHeader header;
  if (!read_body(frame, &header)) return;
  switch (static_cast<uint32_t>(header.event)) {
    case wire::kReadyEvent: {
      std::lock_guard lock(mutex_);
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
    case static_cast<uint32_t>(wire::Event::kTrace): {
      const auto events = frame.subspan(sizeof header);
      std::lock_guard lock(mutex_);
      if (trace_sink_) {
        trace_sink_({reinterpret_cast<const wire::TraceEvent*>(events.data()),
                     events.size() / sizeof(wire::TraceEvent)});
      }
      return;
    }
  }
  RCUDA_WARN("an unknown or malformed event %u of the worker was dropped",
             static_cast<unsigned>(header.event));
}

void EventThread::host_callback(const wire::HostCallbackEvent& event) {
  std::function<void(CUresult)> once;
  Shared shared;
  std::unique_lock lock(mutex_);
  if (auto found = callbacks_.find(event.callback); found != callbacks_.end()) {
    once = std::move(found->second.function);
    callbacks_.erase(found);
  } else if (auto kept = graph_callbacks_.find(event.callback); kept != graph_callbacks_.end()) {
    shared = kept->second;
  }
  if (shared && shared->is_internal) {
    lock.unlock();
    shared->function();
    acknowledge(event);
    return;
  }
  enqueue(
      [this, event, once = std::move(once), shared = std::move(shared)] {
        if (event.mirrored) mirrors_arrived_();
        if (once) {
          once(static_cast<CUresult>(event.status));
        } else if (shared && shared->function) {
          shared->function();
        } else {
          RCUDA_WARN("the worker asked for host function %llu, which is not registered",
                     static_cast<unsigned long long>(event.callback));
        }
        if (event.mirrored) mirrors_leave_();
        acknowledge(event);
      },
      lock);
}

void EventThread::released(uint64_t id) {
  std::unique_lock lock(mutex_);
  const auto found = graph_callbacks_.find(id);
  if (found == graph_callbacks_.end()) return;
  Shared shared = std::move(found->second);
  graph_callbacks_.erase(found);
  // Not here: what it owns may be memory whose end is a round trip.
  enqueue(
      [shared = std::move(shared)]() mutable {
        if (shared->released) shared->released();
        shared.reset();
      },
      lock);
}

void EventThread::acknowledge(const wire::HostCallbackEvent& event) {
  const uint64_t sequence = event.sequence;
  before_peer(&link_);
  // A failure is the Link's loss, which it has logged.
  (void)link_.put(wire::WorkerWindow::kCallbackAcks + 8ull * event.slot,
                  std::as_bytes(std::span(&sequence, 1)), {}, transport::Wake::kYes);
}

void EventThread::enqueue(std::function<void()> work, std::unique_lock<std::mutex>&) {
  // Whatever was registered has its thread. A worker that asks for something else may find none.
  if (!start_callbacks_locked().ok()) return link_.close();
  pending_.push_back(std::move(work));
  changed_.notify_all();
}

void EventThread::run_callbacks() {
  pthread_setname_np(pthread_self(), "rcuda-hostfn");
  running_host_function = true;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_.load() || !pending_.empty(); });
    if (stop_.load()) return;
    std::function<void()> work = std::move(pending_.front());
    pending_.pop_front();
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
}

}  // namespace rcuda::client
