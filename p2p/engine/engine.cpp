#include "p2p/engine/engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <pthread.h>

#include "common/base/cpu_pause.h"
#include "common/base/log.h"
#include "common/base/monotonic.h"
#include "common/base/mutex.h"
#include "common/base/start_thread.h"
#include "common/base/usable_processors.h"
#include "common/transport/verbs/pci_distance.h"
#include "p2p/engine/core.h"
#include "p2p/link/authentication.h"
#include "p2p/staging/numa.h"

namespace rcuda::p2p {
namespace {

using Clock = std::chrono::steady_clock;

// While device work is in progress, the engine thread polls continuously for kSpin, then with
// yields until kYield, then with sleeps of a sixteenth of the time it has waited, at most
// kLongestNap. So it notices the end of the work at most 6 % late, and a copy that waits for a
// kernel of some seconds costs almost no CPU time.
constexpr auto kSpin = std::chrono::microseconds(30);
constexpr auto kYield = std::chrono::milliseconds(3);
constexpr auto kLongestNap = std::chrono::milliseconds(1);
// After the last copy, the engine thread polls for messages for this time before it sleeps. So a
// program that copies in a loop finds the thread awake. The time is short on hosts with few
// processors, because a polling thread may keep other threads from running.
std::chrono::nanoseconds linger() {
  return std::chrono::microseconds(usable_processors() >= 8 ? 1000 : 100);
}

Status check_id(uint64_t id) {
  if (id < uint64_t{1} << 63) return {};  // so an id is never Prober::kTransfer
  return {Code::kInvalidArgument, "the client sent the id " + std::to_string(id) +
                                      " for a peer copy or signal; an id must be below 2^63"};
}

}  // namespace

// The engine thread, and the listeners: threads that sleep on the Links in place of the engine
// thread.
class Engine::Runner {
 public:
  Runner(DeviceOps& ops, EngineOptions options)
      : linger_(std::max(linger(), options.spin)),
        core_(
            std::in_place, ops, std::move(options), [] { return monotonic_ns(); },
            [this] { wake(); }) {
    core_->environment().before_drop = [this](const transport::Link* link) {
      std::erase_if(listeners_, [&](const auto& listener) { return &listener->link() == link; });
    };
  }

  Status start() {
    return start_thread(&thread_, [this] { run(); });
  }

  ~Runner() {
    if (!thread_.joinable()) return;
    post([this] { stop_ = true; });
    thread_.join();
  }

  // Runs `job` on the engine thread, after all jobs posted earlier.
  void post(std::function<void()> job) {
    {
      MutexLock lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    has_jobs_ = true;
    wake();
  }

  Core& core() { return *core_; }  // only for jobs on the engine thread

  void attach(PeerId id, std::unique_ptr<transport::Link> link, const SessionToken& token,
              bool connected) {
    transport::Link* const raw = link.get();
    Peer& peer = core_->peer(id);
    peer.attach(std::move(link), token, connected);
    if (peer.link() != raw) return;
    auto listener = std::make_unique<Listener>(*this, peer);
    if (const Status started = listener->start(); !started.ok()) {
      RCUDA_WARN("the connection with peer %u cannot be used, so copies with this peer fail: %s",
                 id, started.message().c_str());
      peer.lose(started);
    } else {
      listeners_.push_back(std::move(listener));
    }
  }

 private:
  // Sleeps in Link::wait while the engine thread sleeps, and wakes it when a message comes.
  // Destroyed before its Link (before_drop).
  class Listener {
   public:
    Listener(Runner& runner, Peer& peer) : runner_(runner), peer_(peer), link_(*peer.link()) {}
    Status start() {
      return start_thread(&thread_, [this] { run(); });
    }
    ~Listener() {
      if (!thread_.joinable()) return;
      {
        MutexLock lock(runner_.mutex_);
        retired_ = true;
      }
      runner_.asleep_.notify_all();
      link_.interrupt();
      thread_.join();
    }

    const transport::Link& link() const { return link_; }
    void interrupt() { link_.interrupt(); }
    // Called by the engine thread before it sleeps: stores the offset of the next message. A lost
    // peer's messages do not wake the engine thread.
    void look_out() {
      listens_ = peer_.lost().ok();
      next_offset_ = peer_.next_message_offset();
    }

   private:
    // Whether run() must stop sleeping on the Link. While the runner's mutex is held and awake_ is
    // false, the engine thread takes no message, so next_offset_ is valid.
    bool enough() {
      MutexLock lock(runner_.mutex_);
      if (retired_ || runner_.awake_) return true;
      if (!listens_) return false;
      std::byte* word = link_.window().data() + next_offset_;
      return std::atomic_ref(*reinterpret_cast<uint64_t*>(word)).load(std::memory_order_relaxed) !=
             0;
    }

    void run() {
      pthread_setname_np(pthread_self(), "rcuda-p2p-wait");
      MutexLock lock(runner_.mutex_);
      while (true) {
        runner_.asleep_.wait(
            lock, [this]() RCUDA_REQUIRES(runner_.mutex_) { return retired_ || !runner_.awake_; });
        if (retired_) return;
        lock.unlock();
        const Status status = link_.wait([this] { return enough(); }, Clock::time_point::max());
        runner_.wake();
        lock.lock();
        // On a broken Link, Link::wait returns immediately each time. So wait here until the engine
        // thread destroys this listener.
        if (!status.ok())
          runner_.asleep_.wait(lock, [this]() RCUDA_REQUIRES(runner_.mutex_) { return retired_; });
      }
    }

    Runner& runner_;
    Peer& peer_;
    transport::Link& link_;
    // Guarded by the runner's mutex.
    bool listens_ = true;
    uint64_t next_offset_ = 0;
    bool retired_ = false;
    std::thread thread_;
  };

  // A thread calls this after it has queued work for the engine thread. Pairs with sleep(): the
  // engine thread clears awake_ before its last check for work, so either it sees the work, or the
  // caller sees that awake_ is false and wakes it. All accesses to awake_ are sequentially
  // consistent.
  void wake() {
    if (awake_.load()) return;
    {
      MutexLock lock(mutex_);
      awake_ = true;
    }
    wanted_.notify_one();
  }

  bool run_jobs() {
    if (!has_jobs_.exchange(false)) return false;
    std::vector<std::function<void()>> jobs;
    {
      MutexLock lock(mutex_);
      jobs.swap(jobs_);
    }
    for (const auto& job : jobs) job();
    return true;
  }

  void run() {
    pthread_setname_np(pthread_self(), "rcuda-p2p");
    // The NUMA node of the first device whose node is known: staging memory serves all devices, and
    // Links choose the adapter nearest to that device. This thread touches staging memory first, so
    // the memory is on the thread's node.
    int node = -1;
    for (const EngineDevice& device : core_->environment().devices) {
      const auto pci = transport::pci_device_at("/", device.pci_bus_id);
      if (node < 0 && pci) node = pci->numa_node;
    }
    if (run_on_numa_node(node)) {
      RCUDA_INFO("the peer-to-peer engine and its staging memory are on NUMA node %d", node);
    } else {
      RCUDA_INFO("the peer-to-peer engine is not bound to a NUMA node: %s",
                 node < 0 ? "the node of its GPUs is unknown"
                          : "the thread cannot run on the processors of its GPUs' node");
    }
    // The first HMAC of a process takes 3 ms to load its implementation. The engine thread computes
    // an HMAC here, while the connections are being made.
    (void)make_proof({}, false, {}, {});
    Clock::time_point moved_at = Clock::now();
    while (!stop_) {
      bool moved = run_jobs();
      moved |= core_->run_round();
      const Clock::time_point now = Clock::now();
      if (moved) {
        moved_at = now;
      } else if (core_->polling()) {
        back_off(now - moved_at);
      } else if (now - moved_at < linger_) {
        back_off(std::min<Clock::duration>(now - moved_at, kSpin));
      } else {
        sleep();
        moved_at = Clock::now();
      }
    }
    // Destroyed here, because only this thread may free its driver resources.
    core_.reset();
  }

  static void back_off(Clock::duration waited) {
    if (waited < kSpin) {
      cpu_pause();
    } else if (waited < kYield) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::min<Clock::duration>(waited / 16, kLongestNap));
    }
  }

  void sleep() {
    {
      MutexLock lock(mutex_);
      for (const auto& listener : listeners_) listener->look_out();
      awake_ = false;
      if (!has_jobs_ && !core_->pending()) {
        asleep_.notify_all();
        wanted_.wait(lock, [this]() RCUDA_REQUIRES(mutex_) { return awake_.load(); });
      }
      awake_ = true;
    }
    // Ends the listeners' waits. A peer's put costs a system call only while a thread sleeps on the
    // Link.
    for (const auto& listener : listeners_) listener->interrupt();
  }

  Mutex mutex_;
  CondVar wanted_;  // wakes the engine thread
  CondVar asleep_;  // wakes the listeners
  std::vector<std::function<void()>> jobs_ RCUDA_GUARDED_BY(mutex_);
  std::atomic<bool> has_jobs_ = false;
  const std::chrono::nanoseconds linger_;
  std::atomic<bool> awake_ = true;  // written under mutex_
  bool stop_ = false;               // used only by the engine thread

  // Used only by the engine thread. A listener is destroyed before its Link (before_drop).
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::optional<Core> core_;  // destroyed at the end of the engine thread
  std::thread thread_;
};

Engine::Engine(DeviceOps& ops, EngineOptions options)
    : runner_(std::make_unique<Runner>(ops, std::move(options))),
      ops_(ops),
      device_count_(static_cast<int>(ops.devices().size())) {}

transport::LinkOptions Engine::link_options(transport::LinkOptions options) {
  // The threads of the Link poll longer than usual, because a program that copies in a loop has 100
  // to 200 us between two transfers on an H200: the DMA at both ends and a few messages.
  constexpr int kLonger = 5;
  options.window_bytes = PeerWindow::kBytes;
  options.receive_spin *= kLonger;
  return options;
}

Result<std::unique_ptr<Engine>> Engine::create(DeviceOps& ops, EngineOptions options) {
  std::unique_ptr<Engine> engine(new Engine(ops, std::move(options)));
  RCUDA_RETURN_IF_ERROR(engine->runner_->start());
  return engine;
}

Engine::~Engine() = default;

void Engine::attach(PeerId peer, std::unique_ptr<transport::Link> link, const SessionToken& token,
                    bool connected) {
  runner_->post(
      [this, peer, token, connected, link = std::make_shared<decltype(link)>(std::move(link))] {
        runner_->attach(peer, std::move(*link), token, connected);
      });
}

void Engine::lose(PeerId peer, const Status& why) {
  runner_->post([this, peer, why] { runner_->core().peer(peer).lose(why); });
}

Status Engine::copy(PeerCopy copy, Status failure) {
  // Return at once: without a valid id, the peer's half cannot be notified.
  RCUDA_RETURN_IF_ERROR(check_id(copy.id));
  if (failure.ok()) failure = copy.memory.check();
  if (failure.ok() && (copy.device < 0 || copy.device >= device_count_)) {
    failure = {Code::kInvalidArgument, "the client began peer copy " + std::to_string(copy.id) +
                                           " for device " + std::to_string(copy.device) +
                                           ", but this worker has " +
                                           std::to_string(device_count_) + " devices"};
  }
  StreamPlace place = StreamPlace::kNone;
  if (failure.ok() && copy.stream) {
    const Result<StreamPlace> entered = ops_.enter(*copy.stream, copy.hold);
    if (entered) {
      place = *entered;
    } else {
      failure = entered.status();
    }
  }
  if (!failure.ok()) {
    // Queue the copy in spite of the error: the peer's half must end as well, and a half that fails
    // notifies it.
    copy.memory = {};
    copy.device = 0;
    copy.done = {};
  }
  runner_->post([this, place, failure, copy = std::move(copy)]() mutable {
    runner_->core().copy(std::move(copy), place, failure);
  });
  return failure;
}

Status Engine::signal(PeerId peer, uint64_t id, StreamRef stream,
                      std::shared_ptr<const Status> outcome) {
  RCUDA_RETURN_IF_ERROR(check_id(id));
  const Result<StreamPlace> entered = ops_.enter(stream, false);
  const StreamPlace place = entered ? *entered : StreamPlace::kNone;
  runner_->post([this, peer, id, stream, place, status = entered.status(), outcome] {
    runner_->core().peer(peer).signal(id, stream, place, status, outcome);
  });
  return entered.status();
}

Status Engine::await(PeerId peer, uint64_t id, StreamRef stream) {
  RCUDA_RETURN_IF_ERROR(check_id(id));
  const Result<StreamPlace> entered = ops_.enter(stream, true);
  // The core must expect the signal even without a place, because the peer sends it in any case.
  const StreamPlace place = entered ? *entered : StreamPlace::kNone;
  runner_->post(
      [this, peer, id, stream, place] { runner_->core().peer(peer).await(id, stream, place); });
  return entered.status();
}

void Engine::release_memory(MemoryRelease release) {
  runner_->post([this, release = std::move(release)]() mutable {
    runner_->core().release_memory(std::move(release));
  });
}

void Engine::wake() {
  runner_->post([] {});
}

Result<Forecast> Engine::plan(PeerId id, int device, int peer_device, uint64_t bytes) {
  std::promise<Result<Forecast>> promise;
  auto answer = promise.get_future();
  runner_->post([&] {
    Peer& peer = runner_->core().peer(id);
    if (!peer.lost().ok()) return promise.set_value(peer.lost());
    if (!peer.open()) {
      return promise.set_value(
          Status(Code::kUnavailable,
                 "the connection with peer " + std::to_string(id) + " is not open yet; try again"));
    }
    promise.set_value(peer.forecast(device, peer_device, bytes));
  });
  return answer.get();
}

}  // namespace rcuda::p2p
