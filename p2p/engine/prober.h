// Prober: measures in the background the legs that are not yet known:
//   - the copies of this worker's devices to and from host memory, and within a device
//   - the registration of GPU memory
//   - the copy from mapped memory of the peer
//   - a message
//   - the wire to one peer: from host memory and, where GPUDirect works, between GPU memories
// The prober also makes one transfer on each lane and wire that has already been measured, because
// drivers delay work until a stream or a copy engine is first used.
//
// All probers of the engine together have one transfer or short train in progress at a time. (A
// message in progress does not count, because it uses nothing that the other probers measure.) If a
// copy with any peer runs during a sample, the sample is repeated once. While copies keep coming,
// samples take at most a twentieth of the time. A sample reserves its staging memory from the path,
// as a chunk does. Sizes stop growing when a sample takes long, so that a slow link is not measured
// for seconds.
//
// Used only by the engine thread. Nothing blocks except calls in a pause (allocating and
// registering memory), and Link::put while the send queue is full. Results go to Environment::legs
// and to the PeerLink.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

#include "p2p/link/environment.h"
#include "p2p/link/peer_link.h"

namespace rcuda::p2p {

class Prober {
 public:
  // The value of Transfer::copy for the prober's transfers, which belong to no copy.
  static constexpr uint64_t kTransfer = UINT64_MAX;
  static constexpr uint64_t kLargestBytes = Environment::kScratchBytes;

  // Memory of the peer that is mapped for one of this worker's devices.
  struct Mapped {
    int device = 0;
    int peer_device = 0;
    DeviceAddress base = 0;
  };

  Prober(Environment& environment, PeerLink& link, const std::vector<Mapped>& mapped);
  ~Prober();

  // Takes the next step. `busy`: copies are in progress, so nothing is measured now. Errors are
  // those of the mailbox.
  Result<bool> advance(bool busy);
  void echoed(uint64_t tag);
  void transferred(const Status& status);

  // Call it when the peer is lost, because a sample in progress then never ends. Lets other probers
  // measure.
  void abandon();

  // Whether nothing is left to measure.
  bool over() const { return jobs_.empty() && !running_; }

 private:
  enum class Kind : uint8_t { kLane, kWire, kRegister, kEcho };
  struct Job {
    const char* name = "";
    LegModel* leg = nullptr;  // gets the result; in the Environment or the PeerLink
    Kind kind = Kind::kLane;
    int device = 0;
    Lane lane = Lane::kOut;
    DeviceAddress mapped = 0;  // the source of a copy from mapped memory; otherwise 0
    Path* path = nullptr;      // of a wire; null: the path through host memory
    // The leg is already measured. The prober still makes one transfer, so that the driver's work
    // at the first use does not delay a copy.
    bool known = false;
    uint64_t bytes = 0;  // of the next sample
    uint32_t taken = 0;  // samples of that size
    std::vector<LegSample> samples;
  };

  void plan(const std::vector<Mapped>& mapped);
  void want(Job job);
  static bool moves_bytes(const Job& job) {
    return job.kind == Kind::kLane || job.kind == Kind::kWire;
  }
  void begin_sample();
  Path& path_of(const Job& job) const { return job.path ? *job.path : *link_.host_path; }
  Result<bool> start();
  Result<bool> start_echo();
  void start_transfers();
  void start_registration(DeviceAddress scratch);
  void start_copies(DeviceAddress scratch);
  void end_sample(bool good);
  void finish_job();
  void give_back();

  Environment& environment_;
  PeerLink& link_;
  std::deque<Job> jobs_;
  Path* path_ = nullptr;  // the path of slot_
  std::optional<Slot> slot_;

  bool running_ = false;
  bool disturbed_ = false;
  uint64_t seen_activity_ = 0;  // Environment::activity at the last advance()
  uint32_t transfers_ = 0;
  uint32_t transfers_left_ = 0;
  Status failure_;
  Ticket ticket_ = 0;
  uint64_t tag_ = 0;
  double began_us_ = 0;
  uint32_t attempts_ = 0;  // of this sample
  double again_us_ = 0;    // when the next sample may begin although copies keep coming
  double busy_us_ = std::numeric_limits<double>::lowest();  // when a copy was last in progress
};

}  // namespace rcuda::p2p
