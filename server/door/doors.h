// Doors: the processes (door.h) that speak TLS with clients of other machines for the daemon.
//
// A door serves all connections of one origin (an address or a network, listener.h), and never
// those of another origin. It parses the bytes of strangers in a sandbox, and has neither the
// server's key nor its tokens. The daemon gives the door an accepted socket, and gets a stream: the
// door's report of the handshake, and then the messages of the client. The daemon identifies the
// client by a proof (common/tls/proof.h) over two values: the nonce that the daemon has made for
// this connection, and the value that the door reports. A door could lie about:
//
//   the value     the client's proof then fails, because it covers the value of the client's own
//                 connection. A door has proofs only for connections that it serves
//   the proof     a proof of another client or of an earlier connection names another nonce
//   the identity  the daemon does not learn it from the door
//   session key   it protects only the session of the door's own client, whose bytes the door sees
//                 anyway
//   bytes         a door can read and change the messages of its own clients
//
// So an attacker who has taken a door over has the sessions of users that connect through it at
// that time. An attacker who can also intercept connections of other clients gains more: the
// attacker makes the TLS handshake with such a client, and the door reports the values of this
// handshake for one of its own connections. The daemon signs and examines proofs for all
// connections of a door, so this works for clients of any origin. In a session of such a client,
// the attacker acts as the client towards the server, and as the server towards the client.
//
// Bounds. A known client is a client that has proved its identity. At most `most` doors are for
// origins without a known client. A further door replaces, in this order:
//   1. a door without connections
//   2. a door that is no longer spared (kSpared after its first client), if its network (/24 of
//      IPv4, /48 of IPv6) has at least as many doors as the new door's network
//   3. a door that is spared, if its network has at least two doors more than the new door's
// A door with a known client is not replaced until its last connection ends. A door that is ending
// does not count, although it may still send. kMostStarts and kStartsInSecond limit the starts of a
// network.
//
// Descriptors (common/base/passed_descriptors.h): the daemon receives none from a door. The
// daemon's end of the control socket is shut for receiving. From Linux 6.16 on the streams refuse
// descriptors; on older kernels the door's filter of system calls prevents it from sending any.
//
// Threads: the daemon's main thread. Blocking: posix_spawn(); check(), up to 10 s; the destructor,
// up to 1 s, while the doors send the daemon's last messages. When a door ends, its streams end.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <poll.h>
#include <sys/types.h>

#include "common/base/socket.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace rcuda::server {

// Starts `binary` as a door, with only LD_LIBRARY_PATH of this process's environment. The door
// keeps stderr until it is in its sandbox.
Result<pid_t> spawn_door(const std::string& binary, int control);

class Doors {
  struct Door;

 public:
  using Clock = std::chrono::steady_clock;
  // How long a door stays after its last connection, for other clients of its origin.
  static constexpr std::chrono::seconds kLinger{6};
  // How long a new door is spared: long enough for a client to identify itself.
  static constexpr std::chrono::seconds kSpared{1};
  // Starts a door with `control`, the door's end of its control socket. Returns 0 if a test acts as
  // the door.
  using Spawn = std::function<Result<pid_t>(int control)>;

  // A connection through a door.
  struct Passage {
    Socket stream;
    std::shared_ptr<Door> door;
  };

  explicit Doors(Spawn spawn, size_t most = 64, Clock::duration spared = kSpared)
      : spawn_(std::move(spawn)), most_(most), spared_(spared) {}
  ~Doors() { end_all(); }
  Doors(const Doors&) = delete;
  Doors& operator=(const Doors&) = delete;

  // Ends all doors, as the destructor does. refill() and open() start new ones.
  void end_all();
  // Checks that doors work here: starts a door, passes it a connection whose client has already
  // closed its end, and waits for the door's report.
  Status check();
  // Passes a connection to the door of `origin`. The caller keeps the socket `client`. Returns
  // kTimeout if the door has not received its last clients yet, or if no further door may start
  // now; call again.
  Result<Passage> open(const std::string& origin, int client);
  // Records that the client of this passage has proved its identity.
  void keep(const Passage& passage);

  // Ends doors that are not needed. If `wanted`, keeps a spare door started.
  void refill(bool wanted);
  // Adds descriptors that make poll() return when a door ends.
  void add_descriptors(std::vector<pollfd>* items) const;
  // When to call refill() although no descriptor is ready.
  Clock::time_point next_deadline() const;
  bool has(pid_t child) const;
  size_t size() const { return doors_.size(); }

 private:
  struct Door {
    pid_t pid = -1;
    UniqueFd control;
    std::string origin;    // empty: a spare door
    uint64_t network = 0;  // network_of(origin)
    bool known = false;    // one of its clients has proved its identity
    Clock::time_point spared_until{};
    Clock::time_point full_until{};  // until then the door gets no client
    std::optional<Clock::time_point> idle_since;
  };
  using List = std::vector<std::shared_ptr<Door>>;
  // A door whose process should end, and is killed at `kill_at`.
  struct Ended {
    pid_t pid;
    Clock::time_point kill_at;
  };

  Result<std::shared_ptr<Door>> start();
  Result<std::shared_ptr<Door>> door_for(const std::string& origin);
  bool may_start(uint64_t network);
  Status make_room(const std::string& origin, uint64_t network);
  static bool has_lost_its_last(const std::shared_ptr<Door>& door);
  List::iterator end(List::iterator door);
  void reap();

  const Spawn spawn_;
  const size_t most_;
  const Clock::duration spared_;
  List doors_;  // the least recently used first
  std::vector<Ended> ended_;
  Clock::time_point start_from_{};    // when the next spare door may start
  Clock::time_point broken_until_{};  // set when a door has ended before its first client
  Clock::time_point say_crowded_from_{}, say_ended_from_{};
  // How many more doors a network could start at the time `since`.
  struct Starts {
    double left;
    Clock::time_point since;
  };
  std::map<uint64_t, Starts> starts_;
};

}  // namespace rcuda::server
