#include "server/executor/graphs/host_callbacks.h"

#include <atomic>
#include <chrono>
#include <utility>

#include <pthread.h>

#include "common/base/start_thread.h"
#include "server/executor/streams/capture.h"

namespace rcuda::server {

HostCallbacks::HostCallbacks(const api::DriverTable& driver, transport::Link& link,
                             EventSink& events, ClientResources& resources,
                             GraphKeeper& graph_keeper, Mirrors& mirrors,
                             std::shared_ptr<ArrivalGates> gates)
    : driver_(driver),
      link_(link),
      events_(events),
      resources_(resources),
      graph_keeper_(graph_keeper),
      mirrors_(mirrors),
      gates_(std::move(gates)) {
  for (uint32_t slot = wire::WorkerWindow::kCallbackSlots; slot-- > 0;) free_slots_.push_back(slot);
}

HostCallbacks::~HostCallbacks() {
  {
    MutexLock lock(mutex_);
    ends_ = true;
  }
  reached_changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

HostFunction HostCallbacks::make(uint64_t callback) {
  made_ = std::make_shared<Function>(Function{this, resources_.make(callback)});
  return {&run_kept, made_.get()};
}

std::shared_ptr<void> HostCallbacks::take(const void* argument) {
  return made_.get() == argument ? std::exchange(made_, nullptr) : nullptr;
}

uint64_t HostCallbacks::number_of(CUhostFn function, const void* argument) {
  return function == &run_kept ? static_cast<const Function*>(argument)->resource->id() : 0;
}

CUresult HostCallbacks::launch(const SessionStream& stream, uint64_t callback,
                               bool is_stream_callback) {
  if (CUgraph graph = captured_into(driver_, stream.handle); graph && !is_stream_callback) {
    const HostFunction function = make(callback);
    const std::shared_ptr<void> kept = take(function.argument);
    const CUresult result =
        driver_.cuLaunchHostFunc(stream.handle, function.function, function.argument);
    if (result == CUDA_SUCCESS) (void)graph_keeper_.retain(graph, kept);
    return result;
  }
  auto once = std::make_unique<Once>(Once{this, callback, gates_->take(stream, 1)});
  if (once->gate && !thread_.joinable() &&
      !start_thread(&thread_, [this] { run_reached(); }).ok()) {
    once->gate = nullptr;
  }
  const std::shared_ptr<ArrivalGates::Gate> gate = once->gate;
  const CUresult result = queue(stream.handle, std::move(once), is_stream_callback);
  return result == CUDA_SUCCESS && gate ? gates_->hold(stream, *gate, 1) : result;
}

CUresult HostCallbacks::queue(CUstream stream, std::unique_ptr<Once> once,
                              bool is_stream_callback) {
  const CUresult result =
      is_stream_callback ? driver_.cuStreamAddCallback(stream, &run_stream_callback, once.get(), 0)
                         : driver_.cuLaunchHostFunc(stream, &run_once, once.get());
  if (result == CUDA_SUCCESS) (void)once.release();
  return result;
}

void CUDA_CB HostCallbacks::run_kept(void* argument) {
  auto* function = static_cast<Function*>(argument);
  function->owner->run(function->resource->id(), CUDA_SUCCESS);
}

void CUDA_CB HostCallbacks::run_once(void* argument) {
  run_stream_callback(nullptr, CUDA_SUCCESS, argument);
}

void CUDA_CB HostCallbacks::run_stream_callback(CUstream, CUresult status, void* argument) {
  std::unique_ptr<Once> once(static_cast<Once*>(argument));
  HostCallbacks& owner = *once->owner;
  if (!once->gate) return owner.run(once->callback, status);
  once->status = status;
  owner.reached(std::move(once));
}

void HostCallbacks::reached(std::unique_ptr<Once> once) {
  const bool needs_loan = mirrors_.any();
  {
    MutexLock lock(mutex_);
    // Functions are published in order. So while thread_ has to publish an earlier function, it
    // also publishes this function.
    if (!needs_loan && unpublished_ == 0 && !free_slots_.empty()) {
      once->is_published = true;
      once->ack.slot = take_slot_locked();
    } else {
      ++unpublished_;
    }
  }
  if (once->is_published) once->ack = publish(once->ack.slot, once->callback, once->status, 0);
  {
    MutexLock lock(mutex_);
    reached_.push_back(std::move(once));
  }
  reached_changed_.notify_one();
}

void HostCallbacks::run_reached() {
  pthread_setname_np(pthread_self(), "rcuda-host-func");
  MutexLock lock(mutex_);
  for (;;) {
    reached_changed_.wait(lock,
                          [this]() RCUDA_REQUIRES(mutex_) { return ends_ || !reached_.empty(); });
    if (reached_.empty()) return;
    const std::unique_ptr<Once> once = std::move(reached_.front());
    reached_.pop_front();
    lock.unlock();
    if (once->is_published) {
      await(once->ack);
    } else {
      run(once->callback, once->status);
    }
    once->gate->open(1);
    lock.lock();
    if (!once->is_published) --unpublished_;
  }
}

uint32_t HostCallbacks::take_slot() {
  MutexLock lock(mutex_);
  slot_free_.wait(lock, [this]() RCUDA_REQUIRES(mutex_) { return !free_slots_.empty(); });
  return take_slot_locked();
}

uint32_t HostCallbacks::take_slot_locked() {
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void HostCallbacks::run(uint64_t callback, CUresult status) {
  const Mirrors::Loan loan(mirrors_);
  call(callback, status, loan.number());
}

void HostCallbacks::call(uint64_t callback, CUresult status, uint64_t loan) {
  await(publish(take_slot(), callback, status, loan));
}

HostCallbacks::Ack HostCallbacks::publish(uint32_t slot, uint64_t callback, CUresult status,
                                          uint64_t loan) {
  const uint64_t sequence = ++sequences_[slot];
  const bool is_published = events_.host_callback(callback, slot, sequence, status, loan).ok();
  return {slot, is_published ? sequence : 0};
}

void HostCallbacks::await(const Ack& ack) {
  auto* word = reinterpret_cast<uint64_t*>(link_.window().data() +
                                           wire::WorkerWindow::kCallbackAcks + 8ull * ack.slot);
  // Acquire: later work in the stream sees what the application's function wrote into shared
  // memory. The partner is the client's put of the ack.
  const auto acknowledged = [&] {
    return std::atomic_ref(*word).load(std::memory_order_acquire) >= ack.sequence;
  };
  // The function may take any time. Only a broken Link ends the wait early.
  while (
      link_.wait(acknowledged, std::chrono::steady_clock::now() + std::chrono::hours(1)).code() ==
      Code::kTimeout) {
  }
  MutexLock lock(mutex_);
  free_slots_.push_back(ack.slot);
  slot_free_.notify_one();
}

}  // namespace rcuda::server
