// The daemon: accepts clients and gives each a worker. It never uses CUDA itself.
//
// One thread runs one poll loop. A client that connects identifies itself, then sends a Hello (or
// an Attach, for a further socket of a session) within the handshake timeout. The daemon checks the
// message, waits until the client is admitted (admission.h) and a suitable worker is ready, and
// passes the socket to that worker. After that, the session's data does not pass through the
// daemon. A client that cannot be served gets a Refusal that names the remedy, and one line is
// logged.
//
// The local socket reports the client's user. A TCP client of the same machine brings a ticket. A
// client of another machine identifies itself under TLS (authenticator.h, docs/security.md); a
// process without rights speaks TLS in the daemon's place (doors.h). The local socket for
// containers also reports the user, but root of a container is not root of this machine.
//
// Threads: the caller of run(). Blocking: run() returns after an operator's drain, or after a
// signal that stops the server. Before it returns, it ends all sessions within twice the stop
// timeout. With a drain timeout, the sessions may first go on for that time. Errors: run() fails if
// it cannot listen or if the first worker cannot start.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "server/daemon/admission/admission.h"
#include "server/daemon/admission/audit.h"
#include "server/daemon/connection/closer.h"
#include "server/daemon/connection/connections.h"
#include "server/daemon/connection/listener.h"
#include "server/daemon/connection/refusals.h"
#include "server/daemon/ops/control.h"
#include "server/daemon/ops/lease_requests.h"
#include "server/daemon/ops/reload.h"
#include "server/daemon/ops/service_manager.h"
#include "server/daemon/ops/successor.h"
#include "server/daemon/pool/worker_pool.h"
#include "server/door/doors.h"
#include "server/identity/authenticator.h"
#include "server/identity/tickets.h"
#include "server/monitor/gpu_monitor.h"
#include "server/protocol/settings.h"

namespace rcuda::server {

class Daemon {
 public:
  struct Start {
    Reload::Load load{};
    char* const* argv = nullptr;  // of the process; null: no successor takes over
    // After a takeover: the state that the earlier build of this process carried. Otherwise none.
    std::optional<CarriedState> carried{};
  };
  // `signals`: a non-blocking signalfd. SIGHUP reloads the settings, other signals stop the server.
  // -1: none.
  // `ready`: a descriptor; the daemon writes the port and a newline to it once it can serve
  // sessions. -1: none.
  // `start`: how this server was started. `spawn`: starts a door; tests pass their own function.
  // Default: spawn_door().
  Daemon(Settings& settings, int signals, int ready, Start start, Doors::Spawn spawn = {});

  // Fails when it cannot listen, or when the first worker cannot start.
  Status run();

  // The parts of run(), for tests that step the daemon. take_turn() is one round of the loop. It
  // waits for an event, `longest_wait` at most, and returns false if the server is to stop.
  Status open();
  Result<bool> take_turn(std::chrono::milliseconds longest_wait);
  // `why`: the reason that the clients of the ending sessions get.
  void close(const std::string& why = "the server stops");

 private:
  using Clock = std::chrono::steady_clock;

  Status listen();
  Status open_parts();
  bool take_signal();
  void make_room();
  void accept_some(int listening, Entrance entrance);
  void announce();
  std::chrono::milliseconds time_to_next_deadline() const;

  // Taking over from an earlier build, and handing over to a successor (daemon_carry.cpp).
  Status restore(const CarriedState& carried);
  CarriedState carry() const;
  std::string settings_applied();
  std::string choose_successor();
  std::string stay(const Status& why);
  void try_successor();
  bool pauses(Entrance entrance) const;

  Settings& settings_;
  const int signals_;
  const int ready_;
  Start start_;
  const size_t most_newcomers_;
  ServiceManager service_manager_;
  Closer closer_;  // outlives the connections
  Listener listener_;
  Admission admission_;
  Tickets tickets_;
  Authenticator authenticator_;
  Doors doors_;
  Audit audit_;
  Refusals refusals_;
  GpuMonitor monitor_;
  // Between open() and close():
  std::unique_ptr<WorkerPool> pool_;
  std::optional<LeaseRequests> leases_;
  std::optional<Reload> reload_;
  std::optional<Control> control_;
  std::optional<Connections> connections_;
  bool announced_ = false;
  // The build that is to take over. From `from` on, new connections wait in the backlog until no
  // connection is in its handshake, for kLongestPause at most (daemon_carry.cpp).
  struct Successor {
    FileId file;
    Clock::time_point from;
  };
  std::optional<Successor> successor_;
  Clock::time_point accept_from_{};  // no accept() before this time, after accept() has failed
};

}  // namespace rcuda::server
