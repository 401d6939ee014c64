// A simulated world for the peer-to-peer engine: devices, links and a clock, all in one thread.
//
// SimWorld holds the clock and the queue of events. SimDevices implements DeviceOps: each lane is a
// queue with a latency and a bandwidth. Bytes move when a copy ends, so reading too early or
// reusing a buffer too soon gives wrong data. Program streams run tasks in order and stop at held
// places. SimLinks implement transport::Link in pairs; each direction has its own wire. Tests
// can make operations fail. Misuse is recorded in SimWorld::violations, which tests expect to be
// empty: host memory that is not registered, freed memory, a place released twice, a call outside
// of the pause that it needs, memory freed while a peer may still touch it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/transport/link.h"
#include "p2p/api/device_ops.h"
#include "p2p/engine/core.h"

namespace rcuda::testing {

struct Speed {
  double latency_us = 0;
  double gbps = 10;
  double delay_us = 0;  // from the time the leg is free again to the delivery
  double busy_us(uint64_t bytes) const {
    return latency_us + static_cast<double>(bytes) / gbps * 1e-3;
  }
};

class SimWorld {
 public:
  uint64_t now_ns() const { return now_ns_; }
  double now_us() const { return static_cast<double>(now_ns_) * 1e-3; }
  void after_us(double us, std::function<void()> action);

  // Steps the cores until `done` returns true. Returns false if no event is left, or after
  // `limit_us` more of simulated time.
  bool run(const std::vector<p2p::Core*>& cores, const std::function<bool()>& done,
           double limit_us = 1e9);
  // Runs until no event is left.
  void settle(const std::vector<p2p::Core*>& cores) {
    run(cores, [] { return false; });
  }

  // False: copies and transfers take their time but move no bytes, for tests of time alone.
  bool move_bytes = true;

  // Start addresses of the memory that a Link has exposed and not withdrawn. A peer may touch this
  // memory.
  std::multiset<uint64_t> exposed;

  void violation(std::string what) { violations.push_back(std::move(what)); }
  std::vector<std::string> violations;

 private:
  std::map<std::pair<uint64_t, uint64_t>, std::function<void()>> events_;  // by time and sequence
  uint64_t sequence_ = 0;
  uint64_t now_ns_ = 0;
};

class SimDevices final : public p2p::DeviceOps {
 public:
  struct Speeds {
    Speed out{5, 10, 0};
    Speed in{5, 10, 0};
    Speed local{3, 100, 0};
  };

  SimDevices(SimWorld& world, std::string name, int count);
  ~SimDevices() override;

  // Actions of the simulated program. Its streams are numbered from 1.
  uint64_t make_stream();
  void run_kernel(uint64_t stream, double us, std::function<void()> work);
  bool stream_idle(uint64_t stream) const;
  const std::vector<Status>& stream_errors(uint64_t stream) const;
  // Device memory of the program, filled by the test.
  std::byte* make_memory(size_t bytes);
  void free_memory(std::byte* memory);

  void set_speeds(const Speeds& speeds) { speeds_ = speeds; }
  // Makes a later copy of this lane fail with a CUDA error: the next copy if `nth` is 1.
  void fail_copy(p2p::Lane lane, int nth) { failing_[lane] = nth; }
  // Makes the driver refuse a later copy of this lane, after it has issued the copy's first half.
  // `nth`: as in fail_copy().
  void refuse_copy(p2p::Lane lane, int nth) { refusing_[lane] = nth; }
  // reached() fails with this error for every place in the stream.
  void fail_stream(uint64_t stream, int cuda) { failed_streams_[stream] = cuda; }
  void fail_registration(bool fail) { fail_registration_ = fail; }
  void fail_allocation(bool fail) { fail_allocation_ = fail; }
  // Makes a later open() of a peer's memory fail: the next open() if `nth` is 1.
  void fail_mapping(int nth) { failing_mapping_ = nth; }
  void allow_gpudirect(bool allow) { gpudirect_ = allow; }
  void allow_ipc(bool allow) { ipc_ = allow; }
  // The strongest pause that is granted while no stream is held.
  void allow_pauses(p2p::Pause strongest) { strongest_pause_ = strongest; }

  uint64_t copies() const { return copies_; }
  uint64_t opened() const { return opened_; }
  size_t mapped() const { return mapped_.size(); }
  size_t held_places() const { return places_.size(); }
  size_t registered() const { return registered_.size(); }
  size_t allocated() const { return allocated_.size(); }

  std::vector<p2p::EngineDevice> devices() override;
  Result<p2p::Ticket> copy(int device, p2p::Lane lane,
                           std::span<const p2p::CopyBox> boxes) override;
  Result<p2p::Ticket> finished(int device, p2p::Lane lane) override;
  Result<p2p::StreamPlace> enter(p2p::StreamRef stream, bool hold) override;
  Result<bool> reached(p2p::StreamPlace place) override;
  void release(p2p::StreamPlace place, const Status& status) override;
  bool holding() override;
  bool pause(p2p::Pause what) override;
  void resume() override { paused_ = false; }
  Status register_host(void* base, size_t bytes) override;
  void unregister_host(void* base) override;
  Result<p2p::DeviceAddress> allocate(int device, size_t bytes) override;
  void free(int device, p2p::DeviceAddress address) override;
  Result<p2p::ExportedMemory> export_memory(int device, p2p::DeviceAddress address) override;
  Result<p2p::MappedMemory> open(int device, const p2p::ExportedMemory& memory) override;
  void close(int device, p2p::DeviceAddress base) override;
  Result<std::optional<p2p::DmaBuf>> dma_buf(int, p2p::DeviceAddress, size_t) override {
    return std::optional<p2p::DmaBuf>();
  }
  bool prove_gpudirect(int device, transport::Link& link) override;

 private:
  struct LaneState {
    double free_us = 0;
    p2p::Ticket issued = 0;
    p2p::Ticket finished = 0;
    Status failure;
  };
  struct Task {
    double us = 0;
    std::function<void()> work;
    uint64_t place = 0;
  };
  struct Stream {
    std::deque<Task> tasks;
    bool running = false;
    std::vector<Status> errors;
  };
  struct PlaceState {
    uint64_t stream = 0;
    bool hold = false;
    bool reached = false;
    uint64_t behind = 0;  // this place is reached when place `behind` is released; 0: none
    uint64_t task = 0;    // the place whose task in the stream also represents this place
  };

  void want_pause(const char* call);
  void expect_withdrawn(uint64_t base);
  void run_stream(uint64_t stream);
  bool known(uint64_t address, uint64_t bytes, bool* host) const;
  void move(const p2p::CopyBox& box);

  SimWorld& world_;
  const std::string name_;
  Speeds speeds_;
  std::vector<std::array<LaneState, p2p::kLaneCount>> lanes_;
  std::map<uint64_t, Stream> streams_;
  std::map<uint64_t, PlaceState> places_;
  uint64_t next_place_ = 1;
  uint64_t last_hold_ = 0;
  std::map<uint64_t, uint64_t> registered_;  // host ranges
  std::map<uint64_t, uint64_t> memory_;      // the program's device memory
  std::map<uint64_t, uint64_t> allocated_;   // device memory of the engine
  std::map<p2p::Lane, int> failing_, refusing_;
  std::map<uint64_t, int> failed_streams_;
  int failing_mapping_ = 0;
  bool fail_registration_ = false;
  bool fail_allocation_ = false;
  bool gpudirect_ = false;
  bool ipc_ = false;
  p2p::Pause strongest_pause_ = p2p::Pause::kWork;
  bool paused_ = false;
  uint64_t copies_ = 0;
  uint64_t opened_ = 0;
  // Device memory of all workers of the world, so that one worker can map another's.
  static std::map<uint64_t, uint64_t>& everywhere();
  std::set<std::pair<int, uint64_t>> mapped_;  // by device and base
};

struct SimWire {
  Speed speed{1, 8, 0};
  double message_us = 1;
  double uneven_us = 0;  // extra delay of every other transfer
};

class SimLink;
struct SimLinkPair {
  std::unique_ptr<transport::Link> first;
  std::unique_ptr<transport::Link> second;
  // Breaks both ends, as a cut cable does.
  std::function<void()> cut;
  // After this call, every expose() of the first (or the second) end fails.
  std::function<void(bool first)> refuse_registration;
};
SimLinkPair make_sim_links(SimWorld& world, const char* medium, const SimWire& wire);

}  // namespace rcuda::testing
