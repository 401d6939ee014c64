// WorkerPool: the worker processes of a daemon, from their start to their reaping.
//
// Keeps some started workers idle, each in another window of addresses; gives sessions to them;
// starts more when a client's other servers already use the windows of the idle ones. A worker that
// dies is reaped and logged, and concerns nobody but its client. Workers that fail to start are
// retried with growing pauses, and their reason is kept for those who wait. The daemon's one thread
// uses it: it polls descriptors() and calls handle() for what is ready. Nothing blocks but
// shutdown(): a worker that does not read what it is sent counts as dead for who wants it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <list>
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

  // `first_window`: where to begin handing out windows; servers that begin at different ones seldom
  // clash in one client.
  WorkerPool(const Settings& settings, uint32_t first_window);
  ~WorkerPool();

  // Starts what the pool lacks for its idle target plus `waiting` sessions, and ends what is idle
  // beyond that.
  void refill(const std::vector<const wire::Hello*>& waiting);
  // Gives a session to an idle worker whose window the client does not use. False: none is idle.
  // The socket is taken, and closed here, only on success.
  bool assign(const wire::Hello& hello, UniqueFd* socket);
  // A further socket of a session; false when no worker has the token.
  bool attach(const wire::Attach& attach, UniqueFd socket);

  // A connection from another worker of a session; false when no worker is the one it calls on.
  // The socket is taken, and closed here, only on success.
  bool call_on(const wire::PeerHello& hello, UniqueFd* socket);

  void add_descriptors(std::vector<pollfd>* items) const;
  // Looks after every worker whose descriptors are ready.
  void handle(const std::vector<pollfd>& items);
  // When refill() should be called again without an event, for workers that failed to start.
  Clock::time_point next_deadline() const;

  // Tells all to end, waits, kills what is left, and waits for that. Blocks for twice the stop
  // timeout at most: a process that is stuck in a driver may not even be killed, and is left
  // behind.
  void shutdown();

  size_t sessions() const;
  // Idle workers and sessions, for who asks.
  void report(wire::ServerStatus* status) const;
  size_t starting() const;
  bool ever_ready() const { return !offer_.driver.empty(); }
  const WorkerReady& offer() const { return offer_; }  // of the latest worker that became ready
  // Why the latest worker did not start; ok when it did.
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

    bool is_spare() const { return state == State::kStarting || state == State::kIdle; }
  };

  Status start(uint32_t window);
  void stop(Worker& worker);
  uint32_t choose_window(const wire::Hello* hello) const;
  void read(Worker& worker);
  void reap(Worker& worker);
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
