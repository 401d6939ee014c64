// The daemon: accepts clients and gives each a worker. It never uses CUDA itself.
//
// One thread runs one poll loop. A client that connects sends a Hello (or an Attach, for a further
// socket of a session) within the handshake timeout. The daemon checks it, waits for a suitable
// worker, and passes the socket to that worker. After that, the session's data does not pass
// through the daemon. A client that cannot be served gets a Refusal that names the remedy, and one
// line is logged.
//
// On its own machine the daemon serves its own user and root only. The local socket reports the
// client's user; a TCP client brings a ticket (docs/security.md). The number of connections that
// have not introduced themselves is bounded. Beyond the bound, a new connection replaces the oldest
// one of the origin that has the most, so silent connections cannot lock other clients out.
//
// Threads: the caller of run(). Blocking: run(), until `stop` becomes readable; it then ends all
// sessions within the stop timeout. Errors: run() fails if it cannot listen or if the first worker
// cannot start.
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
#include "server/daemon/accounts.h"
#include "server/daemon/identity.h"
#include "server/daemon/listener.h"
#include "server/daemon/served_users.h"
#include "server/daemon/tickets.h"
#include "server/daemon/worker_pool.h"
#include "server/worker/settings.h"

namespace rcuda::server {

class Daemon {
 public:
  // `ready`: a descriptor to which the port and a newline are written once sessions can be served;
  // -1: none.
  Daemon(const Settings& settings, int stop, int ready);

  // Fails when it cannot listen, or when the first worker cannot start.
  Status run();

 private:
  using Clock = std::chrono::steady_clock;

  // A connection that has not yet been passed to a worker.
  struct Connection {
    UniqueFd socket;
    std::string name;
    std::string origin;
    std::optional<uid_t> user;  // from the local socket or a ticket
    wire::TicketQuery ends;     // the two ends of a TCP connection
    bool local = false;
    Identity identity;  // of a local connection
    Clock::time_point deadline;
    std::vector<std::byte> received;
    bool waits = false;         // for a worker
    Clock::time_point name_by;  // while it waits: until when for the user's name
    Clock::time_point tell_at;  // while it waits: when to send the next kQueued
    wire::Hello hello;
  };

  void accept_some(int listening, bool local);
  void greet(Accepted accepted, bool local);
  size_t newcomers() const;
  void drop_newcomer();
  // Returns false if the connection is finished: passed on, answered or refused.
  bool read(Connection& connection);
  bool introduce(Connection& connection, wire::MessageType type,
                 const std::vector<std::byte>& body);
  bool take_ticket(Connection& connection, const std::vector<std::byte>& body);
  void give_ticket(Connection& connection, const std::vector<std::byte>& body);
  Status admit(const Connection& connection) const;
  std::optional<Result<Identity>> identify(const Connection& connection);
  Status check(const wire::Hello& hello) const;
  void refuse(Connection& connection, const Status& status);
  void report(Connection& connection);
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
  ServedUsers served_;
  Accounts accounts_;
  std::list<Connection> connections_;  // the oldest first
  bool announced_ = false;
  Clock::time_point say_crowded_from_{};  // time of the next warning of a flood
  Clock::time_point accept_from_{};       // set to a later time after a failure
};

}  // namespace rcuda::server
