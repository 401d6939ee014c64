// CudaDeviceOps: the GPU operations of the peer-to-peer engine (p2p/api/device_ops.h), over the
// worker's driver table.
//
// Lanes are non-blocking streams of the highest priority in the primary contexts. They share the
// GPU's queues with the program's streams; the executor makes sure that some queues are left for
// them while a stream is held (CommandScheduler). Every copy is followed by an event, which the
// copy engine itself reports. (Rejected: a number that the stream writes after each copy with
// cuStreamWriteValue64. The number is cheaper to read, but its write goes through the queue of the
// compute engine: while a stream of the program was held there, each write took up to 9 us more on
// an H200.)
//
// A held stream waits (cuStreamWaitValue32) for a page-locked word of its own. The value of a word
// only increases. So a word can hold the next stream before the GPU has resumed the previous one.
//
// The executor thread, which queues the streams' work, also grants pauses (p2p/api/pause.h) by
// begin_pause(). So no stream is held and no work is queued between the grant and the calls that
// need the pause. No lock is held over a driver call that may wait for the device.
//
// Threads: as for p2p::DeviceOps; enter() restores the calling thread's current context. `on_error`
// runs on the engine's thread, `on_change` on any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/base/mutex.h"
#include "p2p/api/device_ops.h"
#include "server/executor/host_memory/gpu_direct.h"
#include "server/names/exported_names.h"

namespace rcuda::server {

// The CUresult that a program gets for an error of a peer copy.
CUresult cuda_error_of(const Status& status);

class CudaDeviceOps final : public p2p::DeviceOps {
 public:
  struct Device {
    CUdevice device = 0;
    CUcontext primary = nullptr;  // outlives this object
    bool gpudirect = true;        // RDMA adapters may access the device's memory
  };

  struct Options {
    std::vector<Device> devices;
    std::function<void(CUresult)> on_error;  // a copy in a stream of this worker has failed
    // Called when the last held stream has been released, and when a pause is requested or has
    // ended. Without this function no thread grants pauses: a pause begins as soon as no stream is
    // held, and enter() waits for the end of the pause.
    std::function<void()> on_change{};
    // The names under which memory is exported to peers; outlives this object. Null: peers can map
    // no memory.
    ExportedNames* names = nullptr;
    // RegionPuts::client_has(). Earlier copies of the stream may write to memory of the client, and
    // the other worker may read this memory as soon as a place is reached. So a place counts as
    // reached only when the client has the bytes of these copies.
    std::function<bool(uint64_t*)> client_has{};
  };
  static Result<std::unique_ptr<CudaDeviceOps>> create(const api::DriverTable& driver,
                                                       Options options);
  ~CudaDeviceOps() override;

  // Names a stream of the program, for PeerCopy::stream. `context` is the stream's context; for a
  // default stream, the context that was current.
  static p2p::StreamRef stream_ref(CUstream stream, CUcontext context) {
    return {reinterpret_cast<uint64_t>(stream), reinterpret_cast<uint64_t>(context)};
  }

  // Names an event of the program, for Engine::signal. The latest record of the event counts.
  static p2p::StreamRef event_ref(CUevent event, CUcontext context) {
    return {0, reinterpret_cast<uint64_t>(context), reinterpret_cast<uint64_t>(event)};
  }

  std::vector<p2p::EngineDevice> devices() override;
  Result<p2p::Ticket> copy(int device, p2p::Lane lane,
                           std::span<const p2p::CopyBox> boxes) override;
  Result<p2p::Ticket> finished(int device, p2p::Lane lane) override;
  Result<p2p::StreamPlace> enter(p2p::StreamRef stream, bool hold) override;
  Result<bool> reached(p2p::StreamPlace place) override;
  void release(p2p::StreamPlace place, const Status& status) override;
  bool holding() override { return held_.load() > 0; }
  // The number of this object's own streams that wait for events of the program. Any thread.
  int waiting_streams() const { return waiting_streams_.load(); }
  bool pause(p2p::Pause what) override;
  void resume() override;
  Status register_host(void* base, size_t bytes) override;
  void unregister_host(void* base) override;
  Result<p2p::DeviceAddress> allocate(int device, size_t bytes) override;
  void free(int device, p2p::DeviceAddress address) override;
  Result<p2p::ExportedMemory> export_memory(int device, p2p::DeviceAddress address) override;
  Result<p2p::MappedMemory> open(int device, const p2p::ExportedMemory& memory) override;
  void close(int device, p2p::DeviceAddress base) override;
  bool prove_gpudirect(int device, transport::Link& link) override;
  Result<std::optional<p2p::DmaBuf>> dma_buf(int device, p2p::DeviceAddress address,
                                             size_t bytes) override;

  // For the thread that calls enter(). wants(): whether this pause is requested and has not begun.
  // paused(): the pause in progress.
  bool wants(p2p::Pause what) const {
    return (what == p2p::Pause::kWork ? wants_work_ : wants_holds_).load();
  }
  p2p::Pause paused() const { return paused_.load(); }
  // Grants the pause. Returns false while a stream is held or another pause is in progress. After
  // success the caller must wake the engine.
  bool begin_pause(p2p::Pause what);
  // From now on pauses need no grant. The thread that grants pauses calls this before it waits for
  // the engine's end, and must not call enter() afterwards.
  void grant_by_itself();
  // To be called before a context of the program is destroyed, with its streams and events. If
  // places wait in the context, blocks until all work of the context is done, as the driver would
  // do next.
  void forget_context(CUcontext context);

 private:
  struct Running {
    p2p::Ticket ticket = 0;
    CUevent event = nullptr;
  };
  struct LaneState {
    CUstream stream = nullptr;
    p2p::Ticket issued = 0;
    p2p::Ticket finished = 0;
    std::deque<Running> running;
    std::vector<CUevent> free_events;
  };
  struct HoldWord {  // a word that holds one stream at a time
    std::atomic<uint32_t>* word = nullptr;
    CUdeviceptr address = 0;
    uint32_t generation = 0;
    uint32_t holds = 0;  // places that must be released before the stream goes on
  };
  struct PendingPlace {
    CUevent event = nullptr;      // null: the stream was idle, or `behind` is set
    uint64_t behind = 0;          // the previous place, which holds the stream by the same word
    CUstream stream = nullptr;    // this object's own; it waits for the program's event
    CUcontext context = nullptr;  // null: destroyed; `ended` says how its work ended
    CUresult ended = CUDA_SUCCESS;
    bool hold = false;
    size_t hold_word = 0;
    uint64_t puts = 0;  // the number that client_has() keeps between its calls
  };

  CudaDeviceOps(const api::DriverTable& driver, Options options)
      : driver_(driver), options_(std::move(options)), by_itself_(!options_.on_change) {}
  Status prepare();
  Status make_current(int device);
  Status issue(const p2p::CopyBox& box, CUstream stream);
  Status take_event(std::vector<CUevent>& pool, CUevent* event);
  // Call these functions with the context of the stream or the event current.
  Status record_event(CUstream stream, PendingPlace* pending) RCUDA_REQUIRES(mutex_);
  Status await_event(CUevent event, PendingPlace* pending) RCUDA_REQUIRES(mutex_);
  Status hold(CUstream stream, PendingPlace* pending) RCUDA_REQUIRES(mutex_);
  Result<bool> is_passed(const PendingPlace& pending) RCUDA_REQUIRES(mutex_);
  bool join(p2p::StreamRef ref, PendingPlace* pending) RCUDA_REQUIRES(mutex_);
  void give_back(const PendingPlace& pending) RCUDA_REQUIRES(mutex_);
  LaneState& lane_of(int device, p2p::Lane lane) {
    return lanes_[static_cast<size_t>(device)][static_cast<size_t>(lane)];
  }

  const api::DriverTable& driver_;
  const Options options_;
  std::atomic<int> held_{0};  // places that hold a stream
  std::atomic<int> waiting_streams_{0};
  std::vector<std::array<LaneState, p2p::kLaneCount>> lanes_;
  void* words_ = nullptr;  // page-locked: the hold words
  struct Export {
    CUdeviceptr base = 0;
    wire::ExportedName name{};
  };
  std::unordered_map<unsigned long long, Export> exports_;  // by buffer id; engine's thread only
  struct Proof {
    std::shared_ptr<void> memory;        // kept: freeing it could wait for the device
    std::optional<Registered> how;
    // The names of adapters that reach the device's memory. Other adapters are probed again at the
    // next connection, because a probe may also fail for lack of memory or with its connection.
    std::set<std::string> adapters;
  };
  std::vector<Proof> proofs_;  // of GPUDirect, by device; engine's thread only
  int current_ = -1;  // the device whose context is current on the engine's thread

  Mutex mutex_;
  std::deque<HoldWord> hold_words_ RCUDA_GUARDED_BY(mutex_);
  std::vector<size_t> free_hold_words_ RCUDA_GUARDED_BY(mutex_);
  struct Spare {
    std::vector<CUevent> events;
    std::vector<CUstream> streams;
  };
  std::map<CUcontext, Spare> spare_ RCUDA_GUARDED_BY(mutex_);
  std::map<uint64_t, PendingPlace> places_ RCUDA_GUARDED_BY(mutex_);
  uint64_t next_place_ RCUDA_GUARDED_BY(mutex_) = 1;
  // The last place that held a stream, and that stream.
  uint64_t last_hold_ RCUDA_GUARDED_BY(mutex_) = 0;
  p2p::StreamRef last_held_ RCUDA_GUARDED_BY(mutex_);
  // Written with mutex_ held.
  std::atomic<p2p::Pause> paused_{p2p::Pause::kNone};
  std::atomic<bool> wants_holds_{false}, wants_work_{false};
  CondVar resumed_;
  std::atomic<bool> by_itself_;                        // pauses need no grant
  bool pause_used_ RCUDA_GUARDED_BY(mutex_) = false;   // pause() has reported the pause in progress
  bool pause_stale_ RCUDA_GUARDED_BY(mutex_) = false;  // a round has ended without a pause() call
};

}  // namespace rcuda::server
