// The daemon: accepts clients and gives each a worker. It never uses CUDA itself.
//
// One thread runs one poll loop. A client that connects identifies itself, then sends a Hello (or
// an Attach, for a further socket of a session) within the handshake timeout. The daemon checks it,
// waits for the client's turn (admission.h) and for a suitable worker, and passes the socket to
// that worker. After that, the session's data does not pass through the daemon. A client that
// cannot be served gets a Refusal that names the remedy, and one line is logged.
//
// Who a client is: the local socket reports the user; a TCP client of the same machine brings a
// ticket; one of another machine identifies itself under TLS (gate.h, docs/security.md). The local
// socket for containers reports the user too, but root there is not root here. The number
// of connections that have not introduced themselves is bounded. Beyond the bound, a new connection
// replaces the oldest one of the origin that has the most, so silent connections cannot lock other
// clients out. One that has just got on in its handshake is spared for a moment.
//
// Threads: the caller of run(). Blocking: run(), until `stop` becomes readable; it then ends all
// sessions within the stop timeout, or lets them go on for the drain timeout first. Errors: run()
// fails if it cannot listen or if the first worker cannot start.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <poll.h>

#include "common/base/socket.h"
#include "common/base/status.h"
#include "common/messages/control_messages.h"
#include "common/messages/handshake.h"
#include "common/messages/lease_messages.h"
#include "common/messages/message_io.h"
#include "server/daemon/admission/admission.h"
#include "server/daemon/connection/closer.h"
#include "server/daemon/connection/handshake_debts.h"
#include "server/daemon/connection/listener.h"
#include "server/daemon/connection/unsent.h"
#include "server/daemon/ops/audit.h"
#include "server/daemon/ops/lease_requests.h"
#include "server/daemon/pool/worker_pool.h"
#include "server/identity/accounts.h"
#include "server/identity/gate.h"
#include "server/identity/identity.h"
#include "server/identity/served_users.h"
#include "server/identity/tickets.h"
#include "server/monitor/gpu_monitor.h"
#include "server/protocol/settings.h"

namespace rcuda::server {

class Daemon {
 public:
  // Less than a client waits for an answer, so that it learns why there is none.
  static constexpr std::chrono::seconds kLongestExamination{4};

  // `ready`: a descriptor to which the port and a newline are written once sessions can be served;
  // -1: none.
  Daemon(const Settings& settings, int stop, int ready);

  // Fails when it cannot listen, or when the first worker cannot start.
  Status run();

  // The parts of run(), for tests that step the daemon. take_turn() is one round of the loop. It
  // waits for an event, `longest_wait` at most, and returns false if the server is to stop.
  Status open();
  Result<bool> take_turn(std::chrono::milliseconds longest_wait);
  void close();

 private:
  using Clock = std::chrono::steady_clock;

  enum class Door { kNetwork, kLocal, kContainers };

  // A connection that has not yet been passed to a worker.
  struct Connection {
    Connection() = default;
    Connection(Connection&&) = default;
    Connection& operator=(Connection&&) = default;
    ~Connection() {
      if (closer) closer->close(user, socket.release());
    }

    Socket socket;
    // Set for a local connection if the kernel does not keep descriptors out of it (closer.h). Its
    // bytes then stay in the socket until a worker takes them.
    Closer* closer = nullptr;
    size_t peeked = 0;                         // bytes of whole messages
    std::optional<Clock::time_point> look_at;  // when to read again: poll() reports peeked bytes
    // The cipher of `socket`, of a client of another machine; its handshake may be in progress.
    tls::Connection* tls = nullptr;
    bool shaken = false;  // the handshake is done
    bool shakes = false;  // a step of it is due; meanwhile nothing is read
    std::string name;
    std::string origin;
    wire::TicketQuery ends;  // the two ends of a TCP connection
    bool local = false;
    uid_t user = 0;                    // of the process at the other end of a local connection
    std::optional<Proof> proof;        // being examined; meanwhile nothing is read
    Clock::time_point proof_by;        // when to give the examination up
    bool looks_up = false;             // the account of a client in a container is being looked up
    std::optional<Identity> identity;  // once it is known
    // While its user is being looked up; meanwhile nothing is read.
    std::optional<wire::LeaseRequest> lease_request;
    Clock::time_point deadline;
    Clock::time_point spared_until{};  // it has got on: others of its origin are dropped first
    std::vector<std::byte> received;
    std::optional<Clock::time_point> gpus_asked;  // a GpuQuery that waits for its answer
    Unsent unsent;                                // of its last answer
    bool waits = false;                           // for its turn, then for a worker
    wire::Hello hello;                            // while it waits, like the following
    Clock::time_point waits_since;
    Clock::time_point account_by;  // until when it waits for the user's name and groups
    Clock::time_point tell_at;     // when to send the next kQueued
    std::unique_ptr<Admission::Applicant> applicant;  // from then until its turn has come
    std::unique_ptr<Admission::Permit> permit;        // from then on

    bool reads() const {
      return !shakes && !waits && !proof && !lease_request && !gpus_asked && unsent.empty();
    }
    // The client has begun TLS, and the server does not know its identity yet.
    bool owes_identity() const { return (tls || shakes) && !identity; }
    short events() const {
      // A client that waits sends nothing more, but may disconnect.
      return unsent.empty() ? (reads() && !look_at ? POLLIN : POLLRDHUP) : POLLOUT;
    }
    // The Admission bounds the others.
    bool is_newcomer() const { return !applicant && !permit; }
  };

  // daemon.cpp: the loop
  void serve(const pollfd* events, Clock::time_point now);
  bool expire(Connection& connection);
  // The last message to a client, however long. Returns whether the connection is finished; if not,
  // the socket has no room, and serve() goes on when it has.
  bool send_answer(Connection& connection, wire::MessageType type,
                   const std::vector<std::byte>& body);
  void accept_some(int listening, Door door);
  Status listen();
  // The connections that have not introduced themselves or whose user is being looked up, by
  // origin.
  struct Crowd {
    std::map<std::string, size_t> origins;
    size_t total = 0;
  };
  Crowd newcomers() const;
  void greet(Accepted accepted, Door door, Crowd* crowd);
  Status recognise(Connection& connection, Door door);
  bool is_served(const Identity& local) const;
  bool awaits_lookups(const Connection& client) const;
  void drop_newcomer(Crowd* crowd);
  void refuse(Connection& connection, const Status& status);
  bool tells_of_stranger();
  bool report(Connection& connection);
  void serve_waiting();
  Result<bool> advance(Connection& connection);
  bool knows_account(Connection& connection);
  Result<bool> has_turn(Connection& connection);
  Result<bool> assign(Connection& connection);
  void reassure_waiting();
  void announce();
  std::chrono::milliseconds time_to_next_deadline() const;

  // introduction.cpp: what a client says. The functions that return a bool return false if the
  // connection is finished: passed on, answered or refused.
  bool read(Connection& connection);
  // Receives bytes that have arrived. Returns 0 if there are none now, and a negative number if the
  // connection is finished.
  ssize_t receive(Connection& connection, std::byte* data, size_t bytes);
  bool introduce(Connection& connection, wire::MessageType type,
                 const std::vector<std::byte>& body);
  bool pass_on(Connection& connection, wire::MessageType type, const std::vector<std::byte>& body);
  bool look_up(Connection& connection, const std::vector<std::byte>& body);
  void give_ticket(Connection& connection, const std::vector<std::byte>& body);
  Status take_ticket(Connection& connection, const std::vector<std::byte>& body);
  Status examine(Connection& connection, const std::vector<std::byte>& body);
  Status finish_proof(Connection& connection);
  Status admit(Connection& connection, wire::MessageType type) const;
  Status take_hello(Connection& connection, const std::vector<std::byte>& body);
  Status check(const wire::Hello& hello) const;

  // handshakes.cpp: TLS
  bool begin_tls(Connection& connection);
  bool any_handshake_due() const;
  void shake_hands();
  bool shake_hands(Connection& connection);
  std::list<Connection>::iterator leave(std::list<Connection>::iterator connection);

  // control.cpp: what operators ask. The functions that return a Result<bool> return false while the
  // client must wait.
  Result<bool> take_lease_request(Connection& connection, const std::vector<std::byte>& body);
  Result<bool> answer_lease_request(Connection& connection);
  Status control(Connection& connection, const std::vector<std::byte>& body);
  // `by`: none for a signal.
  void set_draining(bool draining, const std::optional<Identity>& by, const std::string& why);
  Status check_draining() const;
  bool takes_signal();  // false: the server is to stop
  bool is_drained() const;

  // gpu_reports.cpp: what clients ask of the GPUs
  void take_gpu_query(Connection& connection);
  bool answer_gpu_query(Connection& connection);

  const Settings& settings_;
  const int stop_;
  const int ready_;
  const size_t most_newcomers_;
  Closer closer_;  // outlives the connections
  Listener listener_;
  Admission admission_;
  Tickets tickets_;
  Gate gate_;
  Audit audit_;
  std::unique_ptr<WorkerPool> pool_;  // between open() and close()
  GpuMonitor monitor_;
  HandshakeDebts handshakes_;
  std::optional<LeaseRequests> leases_;  // after listen(), until close()
  std::list<Connection> connections_;  // the oldest first
  bool announced_ = false;
  bool draining_ = false;                         // no new sessions; stops when the last has ended
  std::optional<Clock::time_point> drain_until_;  // when it stops anyway, after a signal
  Clock::time_point say_crowded_from_{};          // time of the next warning of a flood
  // Refusals of strangers since strangers_since_. Only some of them are told one by one.
  size_t strangers_refused_ = 0;
  // Since the start, by Code, of which this is the last.
  std::vector<uint64_t> refused_ = std::vector<uint64_t>(static_cast<size_t>(Code::kDenied) + 1);
  Clock::time_point strangers_since_{};
  Clock::time_point accept_from_{};  // set to a later time after a failure
};

}  // namespace rcuda::server
