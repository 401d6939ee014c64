#include "server/executor/host_callbacks.h"

#include <atomic>
#include <chrono>
#include <utility>

#include "server/executor/executor.h"

namespace rcuda::server {

HostCallbacks::HostCallbacks(Executor& executor) : executor_(executor) {
  for (uint32_t slot = wire::WorkerWindow::kCallbackSlots; slot-- > 0;) free_slots_.push_back(slot);
}

HostCallbacks::~HostCallbacks() = default;

HostCallbacks::Callback* HostCallbacks::create(uint64_t callback, bool once) {
  auto made = std::make_unique<Callback>(Callback{this, callback, once});
  if (once) return made.release();
  std::lock_guard lock(mutex_);
  kept_.push_back(std::move(made));
  return kept_.back().get();
}

HostFunction HostCallbacks::make(uint64_t callback) {
  return {&run_host_function, create(callback, false)};
}

CUresult HostCallbacks::launch(const StreamRef& stream, uint64_t callback,
                               bool is_stream_callback) {
  const api::DriverTable& driver = executor_.driver();
  if (!(is_stream_callback ? static_cast<bool>(driver.cuStreamAddCallback)
                           : static_cast<bool>(driver.cuLaunchHostFunc))) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  // In a capture it becomes a graph's node, which runs any number of times.
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (driver.cuStreamIsCapturing) driver.cuStreamIsCapturing(stream.handle, &status);
  const bool once = status == CU_STREAM_CAPTURE_STATUS_NONE;
  Callback* made = create(callback, once);
  const CUresult result =
      is_stream_callback ? driver.cuStreamAddCallback(stream.handle, &run_stream_callback, made, 0)
                         : driver.cuLaunchHostFunc(stream.handle, &run_host_function, made);
  if (result != CUDA_SUCCESS && once) delete made;
  return result;
}

void CUDA_CB HostCallbacks::run_host_function(void* argument) {
  auto* callback = static_cast<Callback*>(argument);
  callback->owner->run(callback, CUDA_SUCCESS);
}

void CUDA_CB HostCallbacks::run_stream_callback(CUstream, CUresult status, void* argument) {
  auto* callback = static_cast<Callback*>(argument);
  callback->owner->run(callback, status);
}

uint32_t HostCallbacks::take_slot() {
  std::unique_lock lock(mutex_);
  slot_free_.wait(lock, [this] { return !free_slots_.empty(); });
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void HostCallbacks::return_slot(uint32_t slot) {
  std::lock_guard lock(mutex_);
  free_slots_.push_back(slot);
  slot_free_.notify_one();
}

void HostCallbacks::run(Callback* callback, CUresult status) {
  const uint64_t id = callback->id;
  if (callback->once) delete callback;
  transport::Link& link = executor_.link();
  const uint32_t slot = take_slot();
  const uint64_t sequence = ++sequences_[slot];
  if (executor_.events().host_callback(id, slot, sequence, status).ok()) {
    auto* word = reinterpret_cast<uint64_t*>(link.window().data() +
                                             wire::WorkerWindow::kCallbackAcks + 8ull * slot);
    // Acquire: what the application's function wrote into shared memory is seen by what follows in
    // the stream. Its partner is the client's put of the ack.
    const auto acknowledged = [&] {
      return std::atomic_ref(*word).load(std::memory_order_acquire) >= sequence;
    };
    // An application may take as long as it likes; only the Link's end frees the stream.
    while (
        link.wait(acknowledged, std::chrono::steady_clock::now() + std::chrono::hours(1)).code() ==
        Code::kTimeout) {
    }
  }
  return_slot(slot);
}

}  // namespace rcuda::server
