// Connections: the clients that have no worker yet.
//
// The number of connections that have not introduced themselves is bounded. Beyond the bound, a new
// connection replaces the oldest connection of the origin that has the most connections, so silent
// connections cannot lock other clients out. A connection whose handshake has just advanced is
// spared for a moment.
//
// Threads: the daemon's only thread. Blocking: nothing. Errors: accept_some() returns those of the
// system. An error of a client ends only its connection.
#pragma once

#include <chrono>
#include <cstddef>
#include <list>
#include <map>
#include <string>
#include <vector>

#include <poll.h>

#include "common/base/status.h"
#include "server/daemon/connection/connection.h"
#include "server/daemon/pool/worker_pool.h"

namespace rcuda::server {

class Connections {
 public:
  using Clock = Connection::Clock;
  static constexpr std::chrono::milliseconds kTimeForStrangers{5};

  // `most`: the bound on connections that have not introduced themselves.
  Connections(const ConnectionServices& services, size_t most) : services_(services), most_(most) {}
  // Refuses every client with this reason. Called before the daemon stops.
  void refuse_all(const Status& why);
  // Refuses only the clients that are not in the queue yet (is_newcomer()).
  void refuse_newcomers(const Status& why);

  // Whether there are clients that are not in the queue yet.
  bool has_newcomers() const { return newcomers().total > 0; }
  bool empty() const { return connections_.empty(); }

  // The bound for this process, which leaves descriptors for sessions and workers.
  static size_t most_newcomers();

  // Accepts some of the connections that wait.
  Status accept_some(int listening, Entrance entrance);
  void add_descriptors(std::vector<pollfd>* items) const;
  // `events`: of all connections, as add_descriptors() has added them. In one round of the daemon's
  // loop, strangers that speak TLS are handled for about kTimeForStrangers, the oldest first. Of
  // the strangers that owe a proof, one of each origin is handled. The other strangers wait for the
  // next round, which begins immediately.
  void handle(const pollfd* events);
  // Advances the clients that wait for sessions as far as is possible now.
  void advance();
  void report_queue();
  // The admitted clients, for the pool.
  std::vector<WorkerPool::Waiting> waiting() const;
  Clock::time_point next_deadline() const;

 private:
  using Position = std::list<Connection>::iterator;
  // The numbers of newcomers, by origin and in total.
  struct Crowd {
    std::map<std::string, size_t> origins;
    size_t total = 0;
  };
  Crowd newcomers() const;
  void drop_newcomer(Crowd* crowd);
  bool may_look_up(const Connection& client) const;
  // Removes the connection if it has ended. Returns the next one.
  Position next(Position connection);

  const ConnectionServices services_;
  const size_t most_;
  std::list<Connection> connections_;     // the oldest first
  Clock::time_point say_crowded_from_{};  // no warning of a flood before this time
};

}  // namespace rcuda::server
