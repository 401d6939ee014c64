// WorkerPool: the worker processes of a daemon, from their start to their reaping.
//
// The pool keeps some started workers idle, each in another window of addresses, and gives sessions
// to them. It starts more when a client's other servers already use the windows of the idle ones. A
// worker that dies is reaped and logged; only its client notices. Workers that fail to start are
// retried with growing pauses, and the reason is kept for those who wait.
// Threads: the daemon's one thread, which polls the descriptors (add_descriptors()) and calls
// handle() for those that are ready. Blocking: shutdown() only. A worker that does not read what it
// is sent counts as dead. Errors: last_failure() says why no worker starts.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include <poll.h>
#include <sys/types.h>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/wire/handshake.h"
#include "server/worker/settings.h"
#include "server/worker/worker_messages.h"

namespace rcuda::server {

using Token = std::array<uint8_t, 16>;

class WorkerPool {
 public:
  using Clock = std::chrono::steady_clock;

  // `first_window`: the first window that is given to a worker. Servers with different ones seldom
  // clash in one client.
  WorkerPool(const Settings& settings, uint32_t first_window);
  ~WorkerPool();

  // Starts the workers that the pool lacks for its idle target and the `waiting` sessions, and ends
  // idle workers beyond that.
  void refill(const std::vector<const wire::Hello*>& waiting);
  // Gives a session to an idle worker whose window the client does not use. False if there is none.
  // The socket is taken, and closed here, only on success.
  bool assign(const wire::Hello& hello, UniqueFd* socket);
  // Passes on a further socket of a session. False if no worker has the token.
  bool attach(const wire::Attach& attach, UniqueFd socket);

  // Passes on a connection from another worker of a session. False if the worker that it calls on
  // is not here. The socket is taken, and closed here, only on success.
  bool call_on(const wire::PeerHello& hello, UniqueFd* socket);

  void add_descriptors(std::vector<pollfd>* items) const;
  // Looks after every worker whose descriptors are ready.
  void handle(const std::vector<pollfd>& items);
  // When handle() and refill() should be called again without an event.
  Clock::time_point next_deadline() const;

  // Tells all workers to end, waits, kills the rest, and waits again. Blocks for twice the stop
  // timeout at most. A process that is stuck in a driver may survive even that, and is left behind.
  void shutdown();

  size_t sessions() const;
  // Adds the idle workers and the sessions.
  void report(wire::ServerStatus* status) const;
  size_t starting() const;
  bool ever_ready() const { return !offer_.driver.empty(); }
  const WorkerReady& offer() const { return offer_; }  // of the latest worker that became ready
  // Why the latest worker did not start; ok if it did.
  const Status& last_failure() const { return last_failure_; }

 private:
  enum class State { kStarting, kIdle, kBusy, kEnding };
  struct Worker {
    State state = State::kStarting;
    pid_t pid = -1;
    UniqueFd process;  // pidfd
    UniqueFd control;
    uint32_t window = 0;
    Token token{};
    Clock::time_point since;
    wire::ServerStatus::Session session;  // while busy, as what follows
    uint8_t client[16] = {};              // Hello::session
    uint32_t index = 0;                   // Hello::worker
    bool said_why = false;                // it could not start, and failed() has been told
    // It has ended, but the kernel tells its tracer first (a debugger); when to ask again.
    std::optional<Clock::time_point> ask_at;

    bool is(State what) const { return state == what && !ask_at; }
    bool is_spare() const { return is(State::kStarting) || is(State::kIdle); }
  };

  Status start(uint32_t window);
  void stop(Worker& worker);
  uint32_t choose_window(const wire::Hello* hello) const;
  void read(Worker& worker);
  // False while a tracer keeps the end of the process from us.
  bool reap(Worker& worker);
  void collect(Clock::time_point deadline);
  void failed(const Status& status);

  const Settings& settings_;
  const uint32_t first_window_;
  std::list<Worker> workers_;
  WorkerReady offer_;
  Status last_failure_;
  int failures_ = 0;  // in a row
  Clock::time_point retry_at_{};
};

}  // namespace rcuda::server
