// ThreadedDevices: DeviceOps in real time, for tests of the engine's threads over real Links. Each
// lane is a thread that copies memory. Streams are only counters: a place is reached at once
// unless the test holds its stream back. Unlike SimDevices, it is thread-safe and has no model of
// time.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "p2p/api/device_ops.h"

namespace rcuda::testing {

class ThreadedDevices final : public p2p::DeviceOps {
 public:
  explicit ThreadedDevices(std::string name);
  ~ThreadedDevices() override;

  // After hold_back(), places of this stream are not reached until let_go().
  void hold_back(uint64_t stream);
  void let_go(uint64_t stream);
  size_t open_orders();
  size_t errors();
  // Sets the strongest pause that a request is granted.
  void allow_pauses(p2p::Pause strongest) { strongest_pause_ = strongest; }
  // Number of requests for a pause so far.
  size_t pauses_asked() const { return pauses_asked_; }
  // Number of blocks of host memory that one thread registered and another thread unregistered.
  size_t given_back_elsewhere();

  std::vector<p2p::EngineDevice> devices() override { return {{"GPU-" + name_, ""}}; }
  Result<p2p::Ticket> copy(int device, p2p::Lane lane,
                           std::span<const p2p::CopyBox> boxes) override;
  Result<p2p::Ticket> finished(int device, p2p::Lane lane) override;
  Result<p2p::StreamPlace> enter(p2p::StreamRef stream, bool hold) override;
  Result<bool> reached(p2p::StreamPlace place) override;
  void release(p2p::StreamPlace place, const Status& status) override;
  bool holding() override { return false; }
  bool pause(p2p::Pause what) override {
    ++pauses_asked_;
    return what <= strongest_pause_;
  }
  void resume() override {}
  Status register_host(void* base, size_t bytes) override;
  void unregister_host(void* base) override;
  Result<p2p::DeviceAddress> allocate(int device, size_t bytes) override;
  void free(int device, p2p::DeviceAddress address) override;
  Result<p2p::ExportedMemory> export_memory(int, p2p::DeviceAddress) override {
    return Status(Code::kUnsupported, "no mapped memory in this test");
  }
  Result<p2p::MappedMemory> open(int, const p2p::ExportedMemory&) override {
    return Status(Code::kUnsupported, "no mapped memory in this test");
  }
  void close(int, p2p::DeviceAddress) override {}
  Result<std::optional<p2p::DmaBuf>> dma_buf(int, p2p::DeviceAddress, size_t) override {
    return std::optional<p2p::DmaBuf>();
  }
  bool prove_gpudirect(int, transport::Link&) override { return false; }

 private:
  struct LaneState {
    std::deque<std::pair<p2p::Ticket, std::vector<p2p::CopyBox>>> queue;
    p2p::Ticket issued = 0;
    p2p::Ticket finished = 0;
    std::thread thread;
  };
  void run(LaneState& lane);

  const std::string name_;
  std::mutex mutex_;
  std::condition_variable work_;
  bool stop_ = false;
  std::array<LaneState, p2p::kLaneCount> lanes_;
  std::map<uint64_t, uint64_t> places_;  // by place: its stream
  std::set<uint64_t> held_back_;
  uint64_t next_place_ = 1;
  size_t errors_ = 0;
  std::map<void*, std::thread::id> registered_;  // by block: the thread that registered it
  size_t given_back_elsewhere_ = 0;
  std::atomic<p2p::Pause> strongest_pause_{p2p::Pause::kWork};
  std::atomic<size_t> pauses_asked_{0};
};

}  // namespace rcuda::testing
