// Prober: measures, in the background, the legs that are not known yet: this worker's devices to
// and from host memory, the wire to one peer, from host memory and, once GPUDirect is proven, from
// and to GPU memory, the registration of GPU memory, the mapped copy from the peer's, a message.
// The others it uses once, as drivers put off work until a stream or an engine is first used.
//
// One transfer or short train is under way at a time, of all probers of the engine. A sample that a
// copy disturbed, with whichever peer, is taken again, once. A leg with a sample that was disturbed
// again serves this session and is not kept (Environment::keep). While copies come, samples take a
// twentieth of the time at most. Staging room is borrowed from the path like any chunk's, for one
// sample. Sizes stop growing when a sample takes long, so a slow link is not measured for seconds.
// Used by the engine's thread alone; nothing blocks. Results go to Environment::measurements.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

#include "p2p/pipeline/environment.h"
#include "p2p/pipeline/peer_link.h"

namespace rcuda::p2p {

class Prober {
 public:
  // Shipment::copy of the prober's transfers.
  static constexpr uint64_t kShipment = UINT64_MAX;
  static constexpr uint64_t kLargestBytes = 16ull << 20;

  // The peer's memory, mapped for one of this worker's devices.
  struct Mapped {
    int device = 0;
    int peer_device = 0;
    DeviceAddress base = 0;
  };

  Prober(Environment& environment, PeerLink& link, const std::vector<Mapped>& mapped);
  ~Prober();

  // GPUDirect was proven from a device to the peer's, before the first advance().
  void add_gpudirect(int device, int peer_device);

  // Takes the next step; `busy`: copies are under way, so measure nothing now. Errors are the
  // mailbox's.
  Result<bool> advance(bool busy);
  void echoed(uint64_t tag);
  void shipped(const Status& status);

  // The peer is lost: the sample under way never ends, and keeps no other prober from measuring.
  void abandon();

  // Nothing left to measure.
  bool over() const { return jobs_.empty() && !running_; }

 private:
  enum class Kind : uint8_t { kLane, kWire, kRegister, kEcho };
  struct Job {
    LegKey key;
    Kind kind = Kind::kLane;
    int device = 0;
    Lane lane = Lane::kOut;
    DeviceAddress mapped = 0;  // the source of a mapped copy, 0 for the others
    Path* path = nullptr;      // of a wire; null: through host memory
    // Measured before: one transfer is made, so that no copy pays for what a driver does at first.
    bool known = false;
    bool disturbed = false;  // a sample that counts was
    uint64_t bytes = 0;      // of the next sample
    uint32_t taken = 0;      // samples of that size
    std::vector<LegSample> samples;
  };

  void plan();
  void want(Job job);
  static bool moves_bytes(const Job& job) {
    return job.kind == Kind::kLane || job.kind == Kind::kWire;
  }
  void begin_sample();
  Path& path_of(const Job& job) const { return job.path ? *job.path : *link_.host_path; }
  Result<bool> start();
  void start_registration(DeviceAddress scratch);
  void end_sample(bool good);
  void finish_job();
  void give_back();
  double message_us() const;

  Environment& environment_;
  PeerLink& link_;
  const std::vector<Mapped> mapped_;
  std::deque<Job> jobs_;
  Path* path_ = nullptr;  // that place_ is of
  std::optional<Place> place_;

  bool running_ = false;
  bool disturbed_ = false;
  uint64_t seen_activity_ = 0;  // Environment::activity at the last advance()
  uint32_t transfers_ = 0;
  uint32_t shipments_left_ = 0;
  Status failure_;
  Ticket ticket_ = 0;
  uint64_t tag_ = 0;
  double began_us_ = 0;
  uint32_t attempts_ = 0;  // at this sample
  double again_us_ = 0;    // when the next may begin although copies come
  double busy_us_ = std::numeric_limits<double>::lowest();  // when a copy was under way last
};

}  // namespace rcuda::p2p
