#include "tests/support/p2p_threads.h"

#include <cstring>
#include <utility>

namespace rcuda::testing {

using p2p::CopyBox;
using p2p::Lane;
using p2p::StreamPlace;
using p2p::Ticket;

ThreadedDevices::ThreadedDevices(std::string name) : name_(std::move(name)) {
  for (LaneState& lane : lanes_) lane.thread = std::thread([this, &lane] { run(lane); });
}

ThreadedDevices::~ThreadedDevices() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  for (LaneState& lane : lanes_) lane.thread.join();
}

void ThreadedDevices::run(LaneState& lane) {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [&] { return stop_ || !lane.queue.empty(); });
    if (lane.queue.empty()) return;
    const auto [ticket, boxes] = std::move(lane.queue.front());
    lane.queue.pop_front();
    lock.unlock();
    for (const CopyBox& box : boxes) {
      for (uint64_t slice = 0; slice < box.slices; ++slice) {
        for (uint64_t row = 0; row < box.rows; ++row) {
          std::memcpy(reinterpret_cast<void*>(box.destination + slice * box.destination_slice +
                                              row * box.destination_pitch),
                      reinterpret_cast<const void*>(box.source + slice * box.source_slice +
                                                    row * box.source_pitch),
                      box.width_bytes);
        }
      }
    }
    lock.lock();
    lane.finished = ticket;
  }
}

void ThreadedDevices::hold_back(uint64_t stream) {
  std::lock_guard lock(mutex_);
  held_back_.insert(stream);
}

void ThreadedDevices::let_go(uint64_t stream) {
  std::lock_guard lock(mutex_);
  held_back_.erase(stream);
}

size_t ThreadedDevices::open_orders() {
  std::lock_guard lock(mutex_);
  return places_.size();
}

size_t ThreadedDevices::errors() {
  std::lock_guard lock(mutex_);
  return errors_;
}

size_t ThreadedDevices::given_back_elsewhere() {
  std::lock_guard lock(mutex_);
  return given_back_elsewhere_;
}

Status ThreadedDevices::register_host(void* base, size_t) {
  std::lock_guard lock(mutex_);
  registered_[base] = std::this_thread::get_id();
  return {};
}

void ThreadedDevices::unregister_host(void* base) {
  std::lock_guard lock(mutex_);
  const auto registered = registered_.extract(base);
  if (!registered || registered.mapped() != std::this_thread::get_id()) ++given_back_elsewhere_;
}

Result<Ticket> ThreadedDevices::copy(int, Lane lane, std::span<const CopyBox> boxes) {
  std::lock_guard lock(mutex_);
  LaneState& state = lanes_[static_cast<size_t>(lane)];
  state.queue.emplace_back(++state.issued, std::vector<CopyBox>(boxes.begin(), boxes.end()));
  work_.notify_all();
  return state.issued;
}

Result<Ticket> ThreadedDevices::finished(int, Lane lane) {
  std::lock_guard lock(mutex_);
  return lanes_[static_cast<size_t>(lane)].finished;
}

Result<StreamPlace> ThreadedDevices::enter(p2p::StreamRef stream, bool) {
  std::lock_guard lock(mutex_);
  places_[next_place_] = stream.stream;
  return StreamPlace{next_place_++};
}

Result<bool> ThreadedDevices::reached(StreamPlace place) {
  std::lock_guard lock(mutex_);
  const auto found = places_.find(static_cast<uint64_t>(place));
  if (found == places_.end())
    return Status(Code::kInternal, "a stream place was queried after its release");
  return !held_back_.contains(found->second);
}

void ThreadedDevices::release(StreamPlace place, const Status& status) {
  std::lock_guard lock(mutex_);
  if (places_.erase(static_cast<uint64_t>(place)) == 0) std::abort();
  if (!status.ok()) ++errors_;
}

Result<p2p::DeviceAddress> ThreadedDevices::allocate(int, size_t bytes) {
  return reinterpret_cast<uint64_t>(::operator new(bytes));
}

void ThreadedDevices::free(int, p2p::DeviceAddress address) {
  ::operator delete(reinterpret_cast<void*>(address));
}

}  // namespace rcuda::testing
