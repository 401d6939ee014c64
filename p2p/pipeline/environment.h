// What all peers of one engine share. Owned by the engine's core; used by the engine's thread
// alone, but for Reports.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/transport/link.h"
#include "p2p/device_ops.h"
#include "p2p/pipeline/lanes.h"
#include "p2p/pipeline/orders.h"
#include "p2p/pipeline/requests.h"
#include "p2p/pipeline/staging.h"
#include "p2p/pipeline/staging_arena.h"
#include "p2p/planner/measurements.h"

namespace rcuda::p2p {

// A chunk that a Link carried, or failed to.
struct Shipment {
  PeerId peer = 0;
  uint64_t generation = 0;  // of the peer's Link
  uint64_t copy = 0;
  uint64_t number = 0;  // of the chunk within the copy
  Status status;
};

// What a peer's Link brought with an immediate.
struct Arrival {
  PeerId peer = 0;
  uint64_t generation = 0;
  uint32_t immediate = 0;
  uint64_t bytes = 0;
};

// Where threads of the Links put what happened. The only state shared with them.
template <typename Event>
class Reports {
 public:
  // `wake` runs after every push, on the pushing thread.
  explicit Reports(std::function<void()> wake) : wake_(std::move(wake)) {}

  void push(Event event) {
    {
      std::lock_guard lock(mutex_);
      list_.push_back(std::move(event));
      empty_ = false;
    }
    if (wake_) wake_();
  }
  std::vector<Event> take() {
    if (empty()) return {};
    std::lock_guard lock(mutex_);
    empty_.store(true, std::memory_order_relaxed);
    return std::exchange(list_, {});
  }
  // Looked at in every round of the engine.
  bool empty() const { return empty_; }

 private:
  std::function<void()> wake_;
  std::mutex mutex_;
  std::vector<Event> list_;  // guarded by mutex_
  std::atomic<bool> empty_{true};
};

// Memory of this process that peers have mapped, so that freeing it can wait for them.
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
        mappable_staging(device_ops, options, Mappable::kYes),
        other_staging(device_ops, options, Mappable::kNo),
        lanes(device_ops),
        orders(device_ops),
        shipments(std::make_shared<Reports<Shipment>>(wake)),
        arrivals(std::make_shared<Reports<Arrival>>(std::move(wake))) {}

  bool valid_device(int device) const {
    return device >= 0 && static_cast<size_t>(device) < devices.size();
  }
  // Memory of a device that peers of this host may try to map, to see whether they can; made when
  // first asked for. Empty where it cannot be exported, and where no copy is to be mapped.
  const std::optional<ExportedMemory>& probe_memory(int device);
  // 16 MB of a device to measure legs with, one for all peers: what peers may map, where there is
  // any. The bytes are anybody's. scratch() makes it, in a pause, where there is none (0).
  DeviceAddress existing_scratch(int device) const;
  Result<DeviceAddress> scratch(int device);
  // In a pause: what was made to measure with and nothing else. drop_device_memory(): all of it.
  bool has_spare_scratch() const { return !scratch_.empty(); }
  void drop_spare_scratch() { scratch_.clear(); }
  void drop_device_memory() {
    scratch_.clear();
    probes_.clear();
  }
  double now_us() const { return static_cast<double>(now_ns()) * 1e-3; }

  DeviceOps& ops;
  const EngineOptions options;
  const std::function<uint64_t()> now_ns;
  const std::vector<EngineDevice> devices;
  // What this worker stages in, with peers that share pages and with the others.
  StagingArena mappable_staging;
  StagingArena other_staging;
  Lanes lanes;
  Orders orders;
  // Callbacks of a Link may outlive the copy that caused them, not the Link; shared all the same,
  // so that destruction needs no order.
  const std::shared_ptr<Reports<Shipment>> shipments;
  const std::shared_ptr<Reports<Arrival>> arrivals;
  // Called before a peer's Link is destroyed, if set.
  std::function<void(const transport::Link*)> before_drop;
  // Stores a leg that was measured here or told by a peer. One that a copy disturbed serves this
  // session alone, and only where there is no better one.
  void keep(const LegKey& key, LegModel leg, bool disturbed);
  // Whether the leg is known as it is without copies beside it.
  bool measured(const LegKey& key) const {
    return measurements.find(key) != nullptr && !disturbed_legs.contains(key);
  }

  Measurements measurements;
  std::set<LegKey> disturbed_legs;  // of `measurements`
  Measurements fresh;               // of `measurements`: to be saved, and not saved yet
  // The prober whose sample is under way. There is one at a time: they use the same legs.
  const Prober* measuring = nullptr;
  bool measures = false;     // some peer's prober was begun: see Peer::measuring()
  uint64_t generations = 0;  // Links so far
  int numa_node = -1;
  std::vector<Exported> exported;

  // How many copies are running, and how many of those have sent everything and only wait for Done.
  uint32_t running_copies = 0;
  uint32_t ending_copies = 0;
  // Incoming bytes that are being copied in. `activity` grows with every copy that begins to run
  // and every landing.
  uint32_t landings = 0;
  uint64_t activity = 0;
  bool copying() const { return running_copies > 0 || landings > 0; }

 private:
  struct Probe {
    bool tried = false;
    DeviceBuffer buffer;
    std::optional<ExportedMemory> exported;
  };
  std::vector<Probe> probes_;
  std::vector<DeviceBuffer> scratch_;  // by device
};

}  // namespace rcuda::p2p
