#include "server/executor/host_memory/arrival_gates.h"

#include <atomic>
#include <utility>

namespace rcuda::server {

ArrivalGates::Gate::Gate(std::shared_ptr<ArrivalGates> gates, uint32_t place, uint32_t before,
                         uint32_t parts)
    : gates_(std::move(gates)), place_(place), before_(before), parts_(parts) {}

ArrivalGates::Gate::~Gate() {
  if (opened_ != parts_) open(parts_);
  MutexLock lock(gates_->mutex_);
  gates_->free_.push_back(place_);
}

void ArrivalGates::Gate::open(uint32_t parts) {
  opened_ = parts;
  // Release, because the GPU reads the bytes after the word.
  std::atomic_ref(gates_->words_[place_]).store(before_ + parts, std::memory_order_release);
}

ArrivalGates::ArrivalGates(const api::DriverTable& driver, std::span<std::byte> words)
    : driver_(driver), words_(reinterpret_cast<uint32_t*>(words.data())) {
  for (size_t place = words.size() / sizeof(uint32_t); place-- > 0;) {
    free_.push_back(static_cast<uint32_t>(place));
  }
  size_ = free_.size();
}

std::unique_ptr<ArrivalGates::Gate> ArrivalGates::take(const SessionStream& stream,
                                                       uint32_t parts) {
  if (stream.context->id != wire::primary_context_id(0)) return nullptr;
  uint32_t place = 0;
  {
    MutexLock lock(mutex_);
    if (free_.empty()) return nullptr;
    place = free_.back();
    free_.pop_back();
  }
  const uint32_t before = std::atomic_ref(words_[place]).load(std::memory_order_relaxed);
  return std::make_unique<Gate>(shared_from_this(), place, before, parts);
}

CUresult ArrivalGates::hold(const SessionStream& stream, const Gate& gate, uint32_t parts) {
  return driver_.cuStreamWaitValue32_v2(stream.handle,
                                        reinterpret_cast<CUdeviceptr>(words_ + gate.place_),
                                        gate.before_ + parts, CU_STREAM_WAIT_VALUE_GEQ);
}

}  // namespace rcuda::server
