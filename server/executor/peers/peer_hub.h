// PeerHub: a worker's connections to the program's other workers. Owns the peer-to-peer engine and
// makes its Links.
//
// The client introduces two workers to each other (introduce()). One of them connects to the
// other's server, whose daemon passes the socket to the other worker (accept_caller()). With this
// socket they make a Link: over shared memory on one host, otherwise over verbs if both can use it,
// otherwise over TCP. A thread for each connection does this; meanwhile copies wait in the engine.
// If a connection cannot be made, its copies end with an error, and `report` gets a line for the
// user.
// A client could name any address, and probe other hosts in this way. So introductions are bounded:
// another worker has one address for the whole session, a program has at most wire::kMostServers
// workers, and the number of connections in progress and of recent failures has a limit. If no
// worker of the program welcomes this worker, the client always gets the same answer, and only at
// the end of the handshake's timeout. The log has the reason.
// The first introduction creates the engine. shut() ends the engine, before the primary contexts in
// which it copies are destroyed. The next introduction creates another engine.
//
// Threads: accept_caller() from any thread, everything else from the executor thread. Threads of
// the hub and of the engine call `on_error` and `report`, which must not wait for the executor
// thread. Blocking: introduce() while it makes the engine (a few streams and 256 KiB of page-locked
// memory), shut() until no DMA is in flight. Neither waits for a connection in progress: shut()
// gives up the attempt, and its thread ends at the handshake's timeout at the latest. The
// destructor waits for these threads.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/unique_fd.h"
#include "common/messages/handshake.h"
#include "common/messages/work.h"
#include "common/tls/connection.h"
#include "common/transport/media.h"
#include "p2p/engine/engine.h"
#include "server/executor/peers/cuda_device_ops.h"
#include "server/executor/peers/peer_returns.h"
#include "server/executor/peers/peer_settings.h"

namespace rcuda::server {

class PeerHub {
 public:
  struct Options : PeerSettings {
    std::function<void(CUresult)> on_error;          // a copy of this worker failed
    std::function<void(const std::string&)> report;  // one line for the user; must not block
    // Called when no stream is held any more, when a connection is made or has failed, and when a
    // pause is requested or has ended. The owner of the hub then grants pauses; without this
    // function, pauses need no grant.
    std::function<void()> on_change;
    ExportedNames* names = nullptr;  // for memory that a peer maps; null: no peer maps any
  };
  PeerHub(const api::DriverTable& driver, Options options);
  ~PeerHub();
  // Sets CudaDeviceOps::Options::client_has. Call it before introduce().
  void wait_for_client(std::function<bool(uint64_t*)> client_has) {
    client_has_ = std::move(client_has);
  }

  struct Introduction {
    p2p::PeerId link = 0;
    uint32_t worker = 0;   // the client's number of the other worker
    uint32_t workers = 2;  // the number of the program's workers
    p2p::SessionToken token{};
    bool connects = false;
    bool encrypted = false;     // over a network, with a key derived from the token
    bool must_encrypt = false;  // even if the server trusts its fabric
    std::string host;           // of the other worker's server
    uint16_t port = 0;
    std::chrono::milliseconds reconnect{0};  // how long the connection may be lost
  };
  // Returns the other worker's server as messages name it: "node1:8308", or "worker 1" if this side
  // does not know the address.
  static std::string other_server(const Introduction& introduction);
  // `devices`: in the client's order. Returns kProtocol if the introduction has values that no
  // correct client sends, kInvalidArgument if the link is already known or the program has too many
  // workers, and kUnavailable if too many connections are in progress or have just failed.
  Status introduce(const Introduction& introduction, std::vector<CudaDeviceOps::Device> devices);
  // Whether to log and report this failed introduction. True for the first few; counts the call.
  bool says_refusal() { return refusals_++ < kMostRefusalsSaid; }
  // Takes a connection from another worker. If the client does not introduce that worker within the
  // handshake's timeout, the next call closes the connection.
  void accept_caller(const wire::PeerHello& hello, UniqueFd socket);

  // Whether this link has been introduced. Copies may be submitted only for such links.
  bool knows(p2p::PeerId link) const { return links_.contains(link); }
  // Whether a stream is held for a copy or an event of another worker.
  bool holding() const { return ops_ && ops_->holding(); }
  int waiting_streams() const { return ops_ ? ops_->waiting_streams() : 0; }
  // See p2p::DeviceOps::pause(). wants(): whether the engine requests this pause. paused(): the
  // pause in progress. begin_pause(): grants a pause.
  bool wants(p2p::Pause what) const { return ops_ && ops_->wants(what); }
  p2p::Pause paused() const { return ops_ ? ops_->paused() : p2p::Pause::kNone; }
  bool begin_pause(p2p::Pause what);
  // Whether the connection has been made or has failed. Until then no stream should be held for it,
  // because making it needs driver calls that wait for the device.
  bool is_decided(p2p::PeerId link) const;
  p2p::Engine& engine() { return *engine_; }
  bool active() const { return engine_ != nullptr; }
  // Calls Engine::copy, and counts the copy until it has ended.
  Status copy(p2p::PeerCopy copy, Status failure);
  // The result of a copy whose error a later PeerSignal command passes on to a third worker
  // (wire::kPeerSignalled). The result is written before the signal is queued, or on the engine's
  // thread. The engine's thread reads it.
  using Outcome = std::shared_ptr<Status>;
  Outcome make_outcome(uint64_t copy) { return outcomes_[copy] = std::make_shared<Status>(); }
  // Removes and returns the Outcome of the copy, for its signal. Returns null if there is no such
  // copy.
  Outcome take_outcome(uint64_t copy) {
    auto found = outcomes_.extract(copy);
    return found ? std::move(found.mapped()) : nullptr;
  }
  // To be called before the program's context is destroyed (CudaDeviceOps::forget_context()).
  void forget_context(CUcontext context) {
    if (ops_) ops_->forget_context(context);
  }
  // Sets the counters of copies that this worker has sent.
  void count_copies(wire::Work* work) const;
  bool copying() const { return copying_.load(std::memory_order_relaxed) > 0; }
  // Runs `done` when no copy in progress uses the memory and no peer maps it. `done` may run before
  // this function returns, or on the engine's thread.
  void when_unused(p2p::DeviceAddress base, uint64_t bytes, std::function<void()> done) {
    if (!engine_) return done();
    engine_->release_memory({base, bytes, std::move(done)});
  }
  // Ends the engine, and all copies with an error. After that no memory counts as in use.
  void shut();

 private:
  static constexpr int kMostRefusalsSaid = 8;
  using Clock = std::chrono::steady_clock;
  using StreamKey = std::pair<uint32_t, uint32_t>;  // link, stream
  // A connection from another worker, before its introduction.
  struct Caller {
    wire::PeerHello hello;
    UniqueFd socket;
    Clock::time_point since;
  };
  // A connection attempt, in progress or ended.
  struct Attempt {
    Introduction introduction;
    Clock::time_point begin;
    bool welcomed = false;  // by a worker of the program; used by `thread` only
    bool given_up = false;  // guarded by mutex_, like `socket`
    // A duplicate of the thread's socket. shut() shuts the connection down through it, so the
    // thread stops waiting for the other worker.
    UniqueFd socket;
    std::atomic<bool> over{false};  // the thread has done its work
    std::thread thread;             // not joinable: it could not be started
  };

  // Checks an introduction against the limits, and records the worker's address.
  Status check_introduction(const Introduction& introduction);
  // The number of connections in progress or recently failed. Joins the threads that are over.
  size_t attempts();
  void connect(Attempt& attempt);
  Clock::time_point deadline_of(const Attempt& attempt) const;
  Status no_connection() const;
  static void log_lost(const Introduction& introduction, const Status& why);
  void report_lost(const Introduction& introduction, const Status& why) const;
  void lost(p2p::PeerId link, const Status& why);
  // Keeps a duplicate of the attempt's socket. Returns false if the attempt has been given up.
  bool note_socket(Attempt& attempt, int socket);
  Result<std::unique_ptr<transport::Link>> connect_peer(Attempt& attempt);
  Result<std::unique_ptr<transport::Link>> connect_peer(Attempt& attempt,
                                                        const transport::Medium* wanted);
  Result<std::unique_ptr<transport::Link>> await_peer(Attempt& attempt, size_t tries);
  // Describes the Link for PeerReturns. `hello`: of the Link's control socket.
  PeerReturns::PeerLinkName returning(const Introduction& introduction,
                                      const wire::PeerHello& hello) const;
  // Encrypts a socket between the two workers, if the introduction requires it and the socket runs
  // over a network.
  Result<Socket> secured(const Introduction& introduction, uint32_t stream, UniqueFd socket,
                         tls::Role role, Clock::time_point deadline) const;
  // Waits for a connection of the other worker. `medium`: gets the medium that the PeerHello names;
  // may be null.
  Result<Socket> take_caller(Attempt& attempt, uint32_t stream, std::string* medium);
  Result<Caller> wait_for_caller(const Attempt& attempt, uint32_t stream,
                                 Clock::time_point deadline);
  Result<std::unique_ptr<transport::Link>> link_over(const transport::Medium& medium,
                                                     transport::Bootstrap bootstrap) const;
  // Returns the reason why the connection must be encrypted, for Medium::suits(). Empty: it need
  // not be encrypted.
  std::string encrypts_because(const Introduction& introduction) const;
  // Whether both workers try TCP next if they cannot make a Link over this medium. False within a
  // host.
  bool may_fall_back(const transport::Medium& medium) const;

  const api::DriverTable& driver_;
  const Options options_;
  std::function<bool(uint64_t*)> client_has_;
  std::map<p2p::PeerId, std::unique_ptr<Attempt>> links_;
  std::list<std::unique_ptr<Attempt>> given_up_;                    // their threads may still run
  std::map<uint32_t, std::pair<std::string, uint16_t>> addresses_;  // by worker
  int refusals_ = 0;
  std::map<uint64_t, Outcome> outcomes_;  // by copy
  PeerReturns returns_;                   // used by Links of the engine
  std::unique_ptr<CudaDeviceOps> ops_;
  std::unique_ptr<p2p::Engine> engine_;
  std::atomic<int> copying_{0};  // copies in progress
  // Copies sent, by route and staging: the counters from Counter::kPeerCopies on. Increased by the
  // engine's thread.
  static constexpr size_t kFirstCounter = static_cast<size_t>(wire::Counter::kPeerCopies);
  std::array<std::atomic<uint64_t>, wire::kWorkNames.size() - kFirstCounter> sent_{};

  mutable Mutex mutex_;
  CondVar changed_;
  // The times at which the recently failed attempts began.
  std::vector<Clock::time_point> failed_ RCUDA_GUARDED_BY(mutex_);
  std::multimap<StreamKey, Caller> callers_ RCUDA_GUARDED_BY(mutex_);
  bool said_crowded_ RCUDA_GUARDED_BY(mutex_) = false;  // has warned of too many callers
  std::set<p2p::PeerId> decided_ RCUDA_GUARDED_BY(mutex_);
  // The introductions since the last shut(), for the engine's thread.
  std::map<p2p::PeerId, Introduction> introduced_ RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::server
