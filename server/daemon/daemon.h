// The daemon: accepts clients, finds each a worker, and never touches CUDA itself.
//
// One thread, one poll loop. A client that connects says Hello (or Attach, for a further socket of
// a session) within the handshake timeout; the daemon checks what it can, waits for a worker that
// suits, and passes the socket on. From then on client and worker are alone with one another. What
// cannot be served is answered with a Refusal that names the mend, and logged in one line.
//
// Of its own machine it serves its own user and root only: the local socket says who connects, and
// a TCP client brings a ticket (docs/security.md). Of the connections that have not introduced
// themselves it keeps a bounded number; beyond that each new one takes the place of the oldest of
// the origin that has most, so that silent ones keep nobody out.
//
// run() blocks until `stop` becomes readable; it then ends all sessions within the stop timeout.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/wire/handshake.h"
#include "server/daemon/listener.h"
#include "server/daemon/tickets.h"
#include "server/daemon/worker_pool.h"
#include "server/worker/settings.h"

namespace rcuda::server {

class Daemon {
 public:
  // `ready`: where to write the port and a newline once sessions can be served; -1: nowhere.
  Daemon(const Settings& settings, int stop, int ready);

  // Fails when it cannot listen, or when the first worker cannot start.
  Status run();

 private:
  using Clock = std::chrono::steady_clock;

  // A connection that has not yet been handed to a worker.
  struct Peer {
    UniqueFd socket;
    std::string name;
    std::string origin;
    std::optional<uid_t> user;     // as the local socket or a ticket says
    wire::TicketQuery connection;  // by TCP
    bool local = false;
    Clock::time_point deadline;
    std::vector<std::byte> received;
    bool waits = false;         // for a worker
    Clock::time_point tell_at;  // while it waits: when to say so again
    wire::Hello hello;
  };

  void accept_some(int listening, bool local);
  void greet(Accepted accepted, bool local);
  size_t newcomers() const;
  void drop_newcomer();
  // False when the peer is done with, either way.
  bool read(Peer& peer);
  bool introduce(Peer& peer, wire::MessageType type, const std::vector<std::byte>& body);
  bool take_ticket(Peer& peer, const std::vector<std::byte>& body);
  void give_ticket(Peer& peer, const std::vector<std::byte>& body);
  Status admit(const Peer& peer) const;
  Status check(const wire::Hello& hello) const;
  void refuse(Peer& peer, const Status& status);
  void report(Peer& peer);
  void serve_waiting();
  void reassure_waiting();
  void announce();
  int poll_timeout_ms() const;

  const Settings& settings_;
  const int stop_;
  const int ready_;
  const size_t most_newcomers_;
  Listener listener_;
  WorkerPool* pool_ = nullptr;
  Tickets tickets_;
  std::list<Peer> peers_;  // the oldest first
  bool announced_ = false;
  Clock::time_point say_crowded_from_{};  // so that a flood does not fill the log
  Clock::time_point accept_from_{};  // after a failure, so that it is not repeated at once
};

}  // namespace rcuda::server
