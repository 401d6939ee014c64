// The state that all peers of one engine share. The engine's core owns it. Only the engine thread
// uses it, except Reports.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/transport/link.h"
#include "p2p/api/device_ops.h"
#include "p2p/link/requests.h"
#include "p2p/link/staging_arena.h"
#include "p2p/staging/lanes.h"
#include "p2p/staging/staging.h"
#include "p2p/staging/stream_places.h"

namespace rcuda::p2p {

// A transfer of a chunk that has ended, with or without an error.
struct Transfer {
  PeerId peer = 0;
  uint64_t copy = 0;
  uint64_t number = 0;  // of the chunk within the copy
  Status status;
};

// Bytes that a peer's Link has received with an immediate.
struct Arrival {
  PeerId peer = 0;
  uint32_t immediate = 0;
  uint64_t bytes = 0;
};

// A list of events that threads of the Links report to the engine thread. These threads share no
// other state with the engine thread.
template <typename Event>
class Reports {
 public:
  // `wake` runs after every push, on the pushing thread.
  explicit Reports(std::function<void()> wake) : wake_(std::move(wake)) {}

  void push(Event event) {
    {
      MutexLock lock(mutex_);
      list_.push_back(std::move(event));
      empty_ = false;
    }
    if (wake_) wake_();
  }
  std::vector<Event> take() {
    if (empty()) return {};
    MutexLock lock(mutex_);
    empty_.store(true, std::memory_order_relaxed);
    return std::exchange(list_, {});
  }
  // Checked in every round of the engine, so it takes no lock.
  bool empty() const { return empty_; }

 private:
  std::function<void()> wake_;
  Mutex mutex_;
  std::vector<Event> list_ RCUDA_GUARDED_BY(mutex_);
  std::atomic<bool> empty_{true};
};

// Memory of this process that peers have mapped. It is freed only after all connected peers have
// unmapped it.
struct Exported {
  int device = 0;
  DeviceAddress base = 0;
  std::array<std::byte, ExportedMemory::kHandleBytes> handle{};
  std::vector<PeerId> peers;
};

class Prober;

struct Environment {
  Environment(DeviceOps& device_ops, EngineOptions engine_options,
              std::function<uint64_t()> clock_ns, std::function<void()> wake)
      : ops(device_ops),
        options(std::move(engine_options)),
        now_ns(std::move(clock_ns)),
        devices(device_ops.devices()),
        legs(devices.size()),
        mappable_staging(device_ops, options, Mappable::kYes),
        other_staging(device_ops, options, Mappable::kNo),
        lanes(device_ops),
        places(device_ops),
        transfers(std::make_shared<Reports<Transfer>>(wake)),
        arrivals(std::make_shared<Reports<Arrival>>(std::move(wake))),
        scratch_(devices.size()) {}

  bool valid_device(int device) const {
    return device >= 0 && static_cast<size_t>(device) < devices.size();
  }
  static constexpr size_t kScratchBytes = size_t{16} << 20;
  // Memory of a device for measuring legs, shared by all peers. Its contents do not matter. The
  // first call of scratch() for a device allocates the memory, so this call must be in a pause
  // (pause.h). Before this call, existing_scratch() returns 0.
  Result<DeviceAddress> scratch(int device);
  DeviceAddress existing_scratch(int device) const {
    return scratch_[static_cast<size_t>(device)].buffer.address();
  }
  // Returns the memory of scratch(), exported for peers on this host: they map it to check whether
  // they can map this worker's memory. The first call allocates the memory, in a pause. nullopt if
  // the memory cannot be exported, or if no plan may map memory.
  const std::optional<ExportedMemory>& probe_memory(int device);
  void drop_device_memory() { scratch_.clear(); }  // call it in a pause
  double now_us() const { return static_cast<double>(now_ns()) * 1e-3; }

  DeviceOps& ops;
  const EngineOptions options;
  const std::function<uint64_t()> now_ns;
  const std::vector<EngineDevice> devices;
  std::vector<DeviceLegs> legs;  // this worker's measurements of its devices
  // This worker's staging memory: mappable_staging for peers that map it, other_staging for the
  // other peers.
  StagingArena mappable_staging;
  StagingArena other_staging;
  Lanes lanes;
  StreamPlaces places;
  // Callbacks of Links push into these lists. The callbacks also own them, so a callback may run
  // after the Environment is destroyed.
  const std::shared_ptr<Reports<Transfer>> transfers;
  const std::shared_ptr<Reports<Arrival>> arrivals;
  // Called before a peer's Link is destroyed, if set.
  std::function<void(const transport::Link*)> before_drop;
  // The prober that is taking a sample, other than an echo. There is at most one, because probers
  // use the same legs.
  const Prober* measuring = nullptr;
  bool measures = false;  // set by the first open peer, which measures its legs at once
  std::vector<Exported> exported;

  // The number of running copies, and of copies that have sent everything and wait only for Done.
  uint32_t running_copies = 0;
  uint32_t ending_copies = 0;
  // The number of chunks and pulls that are being copied in. `activity` grows with every copy that
  // begins to run, and with every chunk or pull that begins to be copied in.
  uint32_t landings = 0;
  uint64_t activity = 0;
  bool copying() const { return running_copies > 0 || landings > 0; }

 private:
  struct Scratch {
    DeviceBuffer buffer;
    bool tried = false;  // whether exporting it has been tried
    std::optional<ExportedMemory> exported;
  };
  std::vector<Scratch> scratch_;  // by device
};

}  // namespace rcuda::p2p
