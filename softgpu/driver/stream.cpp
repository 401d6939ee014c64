#include "softgpu/driver/stream.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "common/base/thread_object.h"
#include "softgpu/driver/call_gate.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/connections.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/event.h"
#include "softgpu/driver/graph_run.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/worker_threads.h"

namespace softgpu::driver {
namespace {

// How long a runner polls for more work before it returns its thread: longer than a program takes
// between two calls, so a stream in use does not borrow a thread for every operation.
constexpr int64_t kIdleSpinNs = 20'000;
// How long a runner waits for another stream before it returns its thread.
constexpr int64_t kBlockSpinNs = 5'000;

// How long a waiting thread leaves the work to the stream's runner, before it does the work itself.
constexpr int64_t kHelpAfterNs = 2'000;

// How many operations may be unfinished before a submission waits: a stream of an H200 takes 1020
// launches after a running kernel (driver 580).
constexpr uint64_t kMaxQueued = 1021;

constexpr uint64_t kNoLimit = ~uint64_t{0};

std::atomic<uint64_t> next_stream_id{1};

// Host functions, which graphs may contain too, never run on a thread of the application.
bool runs_application_code(const Operation& operation) {
  return std::holds_alternative<HostOperation>(operation) ||
         std::holds_alternative<GraphLaunchOperation>(operation);
}

class Hub : public StreamHub {
 public:
  explicit Hub(Context& context) : set_(std::make_shared<StreamSet>(context)) {}
  CUresult synchronize() override {
    set_->synchronize();
    return set_->context().sticky();
  }
  bool idle() override { return set_->idle(); }
  void stop() override {
    set_->shutdown();
    drop_events(set_->context());
  }
  StreamSet& set() { return *set_; }

 private:
  std::shared_ptr<StreamSet> set_;
};

// A thread's default streams, by context. A stream keeps its set alive, so the keys stay unique.
// The end of the thread retires the streams.
struct ThreadStreams {
  std::unordered_map<const StreamSet*, std::shared_ptr<Stream>> by_set;
  ~ThreadStreams() {
    for (auto& [set, stream] : by_set) stream->retire();
  }
};

}  // namespace

std::unique_ptr<StreamHub> make_stream_hub(Context& context) {
  return std::make_unique<Hub>(context);
}

StreamSet& streams_of(Context& context) { return static_cast<Hub&>(context.streams()).set(); }

Stream::Stream(std::shared_ptr<StreamSet> set, Kind kind, int priority)
    : set_(std::move(set)),
      context_(set_->context().shared_from_this()),
      kind_(kind),
      connections_(context_->device().connections()),
      id_(next_stream_id.fetch_add(1)) {
  set_priority(priority);
}

Stream::~Stream() = default;

void Stream::set_priority(int priority) {
  priority_.store(std::clamp(priority, kGreatestStreamPriority, kMinStreamPriority),
                  std::memory_order_relaxed);
}

size_t Connections::choose() {
  for (size_t i = 0; i < last_.size(); ++i) {
    const size_t connection = (next_ + i) % last_.size();
    if (!last_[connection].reached()) continue;
    next_ = connection + 1;
    return connection;
  }
  return next_++ % last_.size();
}

CUresult Stream::enqueue(Operation operation, std::vector<Point> waits, Point* end) {
  const gate::Submission submission;
  wait_for_room();
  return enqueue_at_once(std::move(operation), std::move(waits), end);
}

void Stream::wait_for_room() {
  const uint64_t submitted = submitted_.load(std::memory_order_relaxed);
  if (submitted > kMaxQueued) timeline_->wait(submitted - kMaxQueued);
}

CUresult Stream::enqueue_at_once(Operation operation, std::vector<Point> waits, Point* end) {
  const gate::Submission submission;
  return enqueue_ordered(std::move(operation), std::move(waits), end, nullptr);
}

CUresult Stream::enqueue_and_wait(Operation operation) {
  Point end;
  uint64_t runner = 0;
  CUresult result = CUDA_SUCCESS;
  {
    const gate::Submission submission;
    result = enqueue_ordered(std::move(operation), {}, &end, &runner);
  }
  if (result != CUDA_SUCCESS) return result;
  if (runner != 0) run(runner, end.value);
  wait_for(end.value);
  return context().sticky();
}

CUresult Stream::enqueue_ordered(Operation operation, std::vector<Point> waits, Point* end,
                                 uint64_t* runner) {
  if (kind_ == Kind::kNonBlocking) {
    return push(std::move(operation), std::move(waits), end, runner);
  }
  std::lock_guard order(set_->order_mutex_);
  if (set_->closed_) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  auto follow = [&](const Stream& other) {
    if (!other.idle()) waits.push_back({other.timeline_, other.submitted_.load()});
  };
  if (kind_ == Kind::kLegacy) {
    for (const auto& stream : set_->streams_) {
      if (stream.get() != this && stream->kind_ != Kind::kNonBlocking) follow(*stream);
    }
  } else if (set_->legacy_ != nullptr) {
    follow(*set_->legacy_);
  }
  return push(std::move(operation), std::move(waits), end, runner);
}

CUresult Stream::push(Operation operation, std::vector<Point> waits, Point* end, uint64_t* runner) {
  uint64_t woken = 0;
  {
    std::unique_lock<std::mutex> shared;
    if (connections_) {
      shared = std::unique_lock(connections_->mutex);
      if (idle()) connection_ = connections_->choose();
      const Point& last = connections_->last(connection_);
      if (!last.reached()) waits.push_back(last);
    }
    std::lock_guard lock(mutex_);
    if (closed()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    const uint64_t sequence = submitted_.load(std::memory_order_relaxed) + 1;
    if (connections_) connections_->last(connection_) = {timeline_, sequence};
    queue_.push_back({std::move(operation), std::move(waits), sequence});
    submitted_.store(sequence, std::memory_order_release);
    if (end != nullptr) *end = {timeline_, sequence};
    if (state_ == State::kIdle) {
      state_ = State::kRunning;
      woken = ++runner_;
    }
  }
  if (woken != 0 && runner != nullptr) {
    *runner = woken;
  } else if (woken != 0) {
    post_runner(woken);
  }
  return CUDA_SUCCESS;
}

void Stream::post_runner(uint64_t runner) {
  post_to_worker([self = shared_from_this(), runner] { self->run(runner, kNoLimit); });
}

void Stream::run(uint64_t runner, uint64_t until) {
  while (Task* task = next_task(runner, until)) {
    if (!perform(*task)) return;
    const uint64_t sequence = task->sequence;
    {
      // The operation's resources are released before it counts as finished. A module, for
      // instance, must not outlive its context, and the context's shutdown waits for this stream.
      Task finished;
      std::lock_guard lock(mutex_);
      finished = std::move(queue_.front());
      queue_.pop_front();
    }
    timeline_->complete(sequence);
  }
}

Stream::Task* Stream::next_task(uint64_t runner, uint64_t until) {
  const uint64_t done = timeline_->completed();
  if (done < until && !closed()) {
    spin_until([&] { return submitted_.load(std::memory_order_acquire) > done || closed(); },
               kIdleSpinNs);
  }
  uint64_t successor = 0;
  {
    std::lock_guard lock(mutex_);
    if (runner_ != runner) return nullptr;
    if (queue_.empty()) {
      state_ = State::kIdle;
      return nullptr;
    }
    Task& task = queue_.front();
    if (done < until && (until == kNoLimit || !runs_application_code(task.operation))) {
      task.begun = true;
      return &task;
    }
    successor = ++runner_;
  }
  post_runner(successor);
  return nullptr;
}

void Stream::wait_for(uint64_t sequence) {
  if (spin_until([&] { return timeline_->reached(sequence); }, kHelpAfterNs)) return;
  uint64_t runner = 0;
  {
    std::lock_guard lock(mutex_);
    // No thread may begin a task before the previous task is complete.
    if (state_ == State::kRunning && !queue_.empty() && !queue_.front().begun &&
        timeline_->reached(queue_.front().sequence - 1)) {
      runner = ++runner_;
    }
  }
  if (runner != 0) run(runner, sequence);
  timeline_->wait(sequence);
}

bool Stream::perform(Task& task) {
  for (size_t i = 0; i < task.waits.size(); ++i) {
    // A copy, because close() empties the list of a blocked stream.
    const Point point = task.waits[i];
    if (!point.reached() && !block_on(point)) return false;
  }
  if (auto* launch = std::get_if<GraphLaunchOperation>(&task.operation)) {
    if (!task.started) {
      task.started = true;
      launch->run->launch();
    }
    const Point done = launch->run->done();
    return done.reached() || block_on(done);
  }
  execute_operation(context(), task.operation);
  return true;
}

bool Stream::block_on(const Point& point) {
  if (spin_until([&] { return point.reached(); }, kBlockSpinNs)) return true;
  uint64_t successor = 0;
  {
    std::lock_guard lock(mutex_);
    if (closed() && !queue_.front().started) return true;
    state_ = State::kBlocked;
    successor = runner_ + 1;
  }
  if (point.timeline->notify_at(
          point.value, [self = shared_from_this(), successor] { self->resume(successor); })) {
    return false;
  }
  std::lock_guard lock(mutex_);
  if (state_ != State::kBlocked || runner_ + 1 != successor) return false;
  state_ = State::kRunning;
  return true;
}

void Stream::resume(uint64_t runner) {
  {
    std::lock_guard lock(mutex_);
    // close() may have come first, and the stream may be blocked on something else now.
    if (state_ != State::kBlocked || runner_ + 1 != runner) return;
    runner_ = runner;
    state_ = State::kRunning;
  }
  post_runner(runner);
}

std::vector<std::pair<std::shared_ptr<Stream>, uint64_t>> Stream::pending() {
  std::vector<std::pair<std::shared_ptr<Stream>, uint64_t>> unfinished;
  auto add = [&](Stream& stream) {
    const uint64_t submitted = stream.submitted_.load(std::memory_order_acquire);
    if (!stream.timeline_->reached(submitted)) {
      unfinished.emplace_back(stream.shared_from_this(), submitted);
    }
  };
  if (kind_ == Kind::kLegacy) {
    std::lock_guard order(set_->order_mutex_);
    for (const auto& stream : set_->streams_) {
      if (stream->kind_ != Kind::kNonBlocking) add(*stream);
    }
  } else {
    add(*this);
  }
  return unfinished;
}

bool Stream::finished() { return pending().empty(); }

void Stream::synchronize() {
  for (const auto& [stream, sequence] : pending()) stream->wait_for(sequence);
}

// A closed stream skips queued operations (Context::stopping()) and abandons waits for other
// streams, so its queue becomes empty without delay.
void Stream::close() {
  uint64_t woken = 0;
  {
    std::lock_guard lock(mutex_);
    closed_.store(true, std::memory_order_release);
    for (Task& task : queue_) {
      // The front task may be executing; its waits have ended or are abandoned below.
      if (&task != &queue_.front()) task.waits.clear();
    }
    if (state_ == State::kBlocked && !queue_.front().started) {
      queue_.front().waits.clear();
      state_ = State::kRunning;
      woken = ++runner_;
    }
  }
  if (woken != 0) post_runner(woken);
}

std::shared_ptr<Stream> StreamSet::legacy() {
  std::lock_guard order(order_mutex_);
  if (legacy_ == nullptr) {
    legacy_ =
        std::make_shared<Stream>(shared_from_this(), Stream::Kind::kLegacy, kMinStreamPriority);
    add_locked(legacy_);
  }
  return legacy_;
}

std::shared_ptr<Stream> StreamSet::per_thread() {
  auto& by_set = rcuda::of_this_thread<ThreadStreams>().by_set;
  if (const auto own = by_set.find(this); own != by_set.end()) return own->second;
  std::erase_if(by_set, [](const auto& entry) { return entry.second->closed(); });
  auto made =
      std::make_shared<Stream>(shared_from_this(), Stream::Kind::kPerThread, kMinStreamPriority);
  add(made);
  by_set.emplace(this, made);
  return made;
}

std::shared_ptr<Stream> StreamSet::create(unsigned flags, int priority) {
  auto stream = std::make_shared<Stream>(
      shared_from_this(),
      (flags & CU_STREAM_NON_BLOCKING) != 0 ? Stream::Kind::kNonBlocking : Stream::Kind::kBlocking,
      priority);
  // The handle is inserted first, because shutdown() removes the handles of the streams in the set.
  handle_table<Stream>().insert(stream);
  add(stream);
  if (!stream->closed()) return stream;
  handle_table<Stream>().remove(stream.get());
  return nullptr;
}

void StreamSet::add(const std::shared_ptr<Stream>& stream) {
  std::lock_guard order(order_mutex_);
  drop_finished_locked();
  add_locked(stream);
}

void StreamSet::drop_finished_locked() {
  std::erase_if(streams_, [](const auto& old) { return old->retired() && old->idle(); });
}

void StreamSet::add_locked(const std::shared_ptr<Stream>& stream) {
  if (closed_) {
    stream->close();
    return;
  }
  streams_.push_back(stream);
}

std::vector<std::shared_ptr<Stream>> StreamSet::snapshot() {
  std::lock_guard order(order_mutex_);
  return streams_;
}

void StreamSet::synchronize() {
  for (const auto& stream : snapshot()) {
    stream->wait_for(stream->submitted_.load());
  }
}

bool StreamSet::idle() {
  const auto streams = snapshot();
  return std::all_of(streams.begin(), streams.end(), [](const auto& s) { return s->idle(); });
}

CUresult StreamSet::record_all(Operation operation, Point* end) {
  const gate::Submission submission;
  auto marker = std::make_shared<Stream>(shared_from_this(), Stream::Kind::kNonBlocking, 0);
  std::vector<Point> waits;
  std::lock_guard order(order_mutex_);
  if (closed_) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  drop_finished_locked();
  for (const auto& stream : streams_) {
    if (!stream->idle()) waits.push_back({stream->timeline_, stream->submitted_.load()});
  }
  marker->retire();
  streams_.push_back(marker);
  return marker->push(std::move(operation), std::move(waits), end, nullptr);
}

CUresult StreamSet::wait_in_all(const Operation& operation, const std::vector<Point>& waits) {
  const gate::Submission submission;
  legacy();  // makes the legacy stream: blocking streams that are made later wait for its work
  std::lock_guard order(order_mutex_);
  if (closed_) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  for (const auto& stream : streams_) {
    if (stream->retired()) continue;
    if (CUresult result = stream->push(operation, waits, nullptr, nullptr)) return result;
  }
  return CUDA_SUCCESS;
}

void StreamSet::shutdown() {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    std::lock_guard order(order_mutex_);
    closed_ = true;
    streams.swap(streams_);
    legacy_.reset();
  }
  for (const auto& stream : streams) stream->close();
  for (const auto& stream : streams) {
    stream->timeline_->wait(stream->submitted_.load());
    handle_table<Stream>().remove(stream.get());
    end_capture_of(*stream);
  }
}

CUresult resolve_stream(CUstream handle, std::shared_ptr<Stream>* stream) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    Context* context = current_context();
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->alive()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    // Driver 580 has no per-thread streams in a green context (H100).
    if (handle == CU_STREAM_PER_THREAD && context->is_green()) return CUDA_ERROR_INVALID_HANDLE;
    StreamSet& set = streams_of(*context);
    *stream = handle == CU_STREAM_PER_THREAD ? set.per_thread() : set.legacy();
    return CUDA_SUCCESS;
  }
  *stream = handle_table<Stream>().find(handle);
  return *stream == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

}  // namespace softgpu::driver
