// PeerHub: a worker's dealings with the other workers of its session. Owns the peer-to-peer engine
// and makes its connections.
//
// The client introduces two workers to one another (introduce()): one of them connects to the
// other's server, whose daemon hands the socket to the other worker (called_on()), and both make a
// Link of it, over shared memory on one host, else over verbs where both can, else over TCP. That
// takes a thread per connection until it stands; meanwhile copies wait in the engine. A connection
// that cannot be made ends its copies with an error, and `report` says why.
// The engine is made with the first introduction and ended by shut(), before the primary contexts
// that it copies in are; the next introduction makes another.
//
// Threads: called_on() from any thread, everything else from the executor thread. `on_error` and
// `report` are called from threads of the hub and the engine, and must not block for the executor.
// Blocking: introduce() for making the engine (a few streams and a page-locked page), shut() until
// no DMA is under way. Neither waits for a connection that is being made: shut() gives it up, and
// its thread ends by itself, at the handshake's timeout at the latest. The destructor waits for
// that.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/unique_fd.h"
#include "common/transport/link.h"
#include "common/wire/handshake.h"
#include "p2p/engine.h"
#include "server/peer/cuda_device_ops.h"
#include "server/peer/peer_settings.h"

namespace rcuda::server {

class PeerHub {
 public:
  struct Options : PeerSettings {
    std::function<void(CUresult)> on_error;          // a copy of this worker ended badly
    std::function<void(const std::string&)> report;  // one line for the user
    // Holding() ended, a connection became settled, or a pause is wanted or over. Whoever is given
    // it grants pauses; without it none need be granted.
    std::function<void()> on_change;
  };
  PeerHub(const api::DriverTable& driver, Options options);
  ~PeerHub();

  struct Introduction {
    p2p::PeerId link = 0;
    uint32_t worker = 0;   // the other, as the client counts
    uint32_t workers = 2;  // of the session
    p2p::SessionToken token{};
    bool connects = false;
    std::string host;  // of the other's server
    uint16_t port = 0;
  };
  // `devices`: as the client counts them. kInvalidArgument for a link that is known already.
  Status introduce(const Introduction& introduction, std::vector<CudaDeviceOps::Device> devices);
  // A connection of another worker. One that nobody introduces in time is closed.
  void called_on(const wire::PeerHello& hello, UniqueFd socket);

  // Whether copies go over this link; others must not be given to it.
  bool knows(p2p::PeerId link) const { return links_.contains(link); }
  // Whether a stream is held for a copy or an event of another worker.
  bool holding() const { return ops_ && ops_->holding(); }
  int waiting_streams() const { return ops_ ? ops_->waiting_streams() : 0; }
  // See p2p::DeviceOps::pause(). What the engine wants; the pause there is; granting one.
  bool wants(p2p::Pause what) const { return ops_ && ops_->wants(what); }
  p2p::Pause paused() const { return ops_ ? ops_->paused() : p2p::Pause::kNone; }
  bool begin_pause(p2p::Pause what);
  // Whether the connection stands, or cannot be had. Before, no stream should be held for it:
  // making it takes driver calls that wait for the device.
  bool settled(p2p::PeerId link) const;
  p2p::Engine& engine() { return *engine_; }
  bool active() const { return engine_ != nullptr; }
  // Engine::copy, with account of the memory that is in use.
  Status copy(p2p::PeerCopy copy, Status failure);
  // See CudaDeviceOps.
  void forget_context(CUcontext context) {
    if (ops_) ops_->forget_context(context);
  }
  bool copying() const { return copying_.load(std::memory_order_relaxed) > 0; }
  // `done` runs, perhaps at once, perhaps on the engine's thread, when no copy under way uses the
  // memory and no peer maps it.
  void when_unused(p2p::DeviceAddress base, uint64_t bytes, std::function<void()> done);
  // All copies end with an error, and memory counts as unused.
  void shut();

 private:
  using Clock = std::chrono::steady_clock;
  using StreamKey = std::pair<uint32_t, uint32_t>;  // link, stream
  struct Caller {
    wire::PeerHello hello;
    UniqueFd socket;
    Clock::time_point since;
  };
  struct Use {
    p2p::DeviceAddress begin = 0, end = 0;
  };
  struct Awaiting {
    Use memory;
    std::function<void()> done;
  };
  // A connection that is being made, or was.
  struct Attempt {
    Introduction introduction;
    bool given_up = false;  // guarded by mutex_, as `socket` is
    // The same connection as the thread's: what waits for the other worker ends with it.
    UniqueFd socket;
    std::atomic<bool> over{false};  // the thread does nothing any more
    std::thread thread;             // none: it could not be started
  };

  void connect(Attempt& attempt);
  // Says why the connection is not there. `tell_user`: the user as well.
  void say_lost(const Introduction& introduction, const Status& why, bool tell_user) const;
  // False where the attempt was given up meanwhile.
  bool note_socket(Attempt& attempt, int socket);
  Result<std::unique_ptr<transport::Link>> call_on(Attempt& attempt);
  Result<std::unique_ptr<transport::Link>> call_on(Attempt& attempt,
                                                   const transport::Medium* wanted);
  Result<std::unique_ptr<transport::Link>> be_called_on(Attempt& attempt);
  Result<Caller> wait_for_caller(const Attempt& attempt, uint32_t stream);
  Result<std::unique_ptr<transport::Link>> link_over(const transport::Medium& medium,
                                                     transport::Bootstrap bootstrap) const;
  bool shutting() const;
  bool in_use(const Use& memory) const;
  void copy_over(std::list<Use>::iterator use);

  const api::DriverTable& driver_;
  const Options options_;
  std::map<p2p::PeerId, std::unique_ptr<Attempt>> links_;
  std::list<std::unique_ptr<Attempt>> given_up_;  // whose threads have not ended yet
  std::unique_ptr<CudaDeviceOps> ops_;
  std::unique_ptr<p2p::Engine> engine_;
  std::atomic<int> copying_{0};  // copies under way

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool shut_ = false;
  std::map<StreamKey, Caller> callers_;
  std::set<p2p::PeerId> settled_;
  std::list<Use> uses_;
  std::list<Awaiting> awaiting_;
};

}  // namespace rcuda::server
