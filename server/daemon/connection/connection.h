// Connection: a client from accept() until a worker has its socket, or until it is answered,
// refused or gone. Its states are in connection_state.h.
//
// The client identifies itself, then sends a Hello, an Attach (for a further socket of a session),
// or a request that needs no session. Each message is checked (introduction.cpp). A client that
// wants a session then waits in the queue of the admission, and for a worker (waiting.cpp). A
// function that ends or refuses the connection puts it into the state kEnded. Connections then
// removes it.
//
// Threads: the daemon's only thread. Blocking: nothing. Errors: become the client's Refusal and a
// line in the log.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "common/base/socket.h"
#include "common/base/status.h"
#include "common/base/unsent.h"
#include "common/messages/handshake.h"
#include "common/messages/lease_messages.h"
#include "common/messages/message_io.h"
#include "server/daemon/admission/admission.h"
#include "server/daemon/connection/closer.h"
#include "server/daemon/connection/connection_state.h"
#include "server/daemon/connection/listener.h"
#include "server/daemon/connection/refusals.h"
#include "server/daemon/ops/control.h"
#include "server/daemon/ops/lease_requests.h"
#include "server/daemon/pool/worker_pool.h"
#include "server/door/door.h"
#include "server/door/doors.h"
#include "server/identity/authenticator.h"
#include "server/identity/identity.h"
#include "server/identity/tickets.h"
#include "server/monitor/gpu_monitor.h"
#include "server/protocol/settings.h"

namespace rcuda::server {

// The kind of listening socket through which a client connected.
enum class Entrance { kNetwork, kLocal, kContainers };

// The parts of the daemon that connections use.
struct ConnectionServices {
  const Settings& settings;
  const Listener& listener;
  Closer& closer;
  Authenticator& authenticator;
  Doors& doors;
  Tickets& tickets;
  Admission& admission;
  WorkerPool& pool;
  LeaseRequests& leases;
  Control& control;
  GpuMonitor& monitor;
  Refusals& refusals;
};

class Connection {
 public:
  using Clock = std::chrono::steady_clock;
  using State = ConnectionState;

  // The longest examination of an identity. It is less than the time that a client waits for an
  // answer, so that the client receives the reason.
  static constexpr std::chrono::seconds kLongestExamination{4};
  // The longest wait for the name of a local user. If the name service takes longer, the user
  // appears by number.
  static constexpr std::chrono::milliseconds kLongestWaitForName{100};
  // A client that has not asked to wait also stays in the queue, for this time, and longer while
  // ending sessions hold the places that the client needs. Within this time a worker notices that
  // its program has exited, even on a loaded machine. So a user who runs one program after the
  // other needs only one place.
  static constexpr std::chrono::milliseconds kNoticesExit{500};

  // The services outlive the connection.
  Connection(const ConnectionServices& services, Accepted accepted, Entrance entrance);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  State state() const { return state_; }
  const std::string& origin() const { return origin_; }
  // The account to look up. Only for a client in a container.
  const AccountKey& account() const { return *proof_->account; }
  bool is_in_container() const;
  // Whether the client speaks TLS and is not identified yet. Such a client costs the daemon
  // signatures, and may cost it a new door.
  bool is_stranger() const;
  // Whether the daemon must make or check a signature for the client's next message.
  bool owes_proof() const { return passage_ && !identity_; }
  // Whether handle() must be called even without an event.
  bool looks(Clock::time_point now) const { return look_at_ && now >= *look_at_; }
  // Until this time, other connections of the same origin are dropped before this connection,
  // because its handshake has just advanced.
  Clock::time_point spared_until() const { return spared_until_; }

  // The descriptor to poll. While the client waits, this is the client's socket and not the stream
  // of its door: a door that does not read does not notice that the client leaves.
  int fd() const { return reads(state_) || is(State::kAnswering) ? channel().fd() : socket_.fd(); }
  short events() const;
  // When to call handle() or advance() even without an event.
  Clock::time_point next_deadline() const;

  // Handles the events of its socket, finished look-ups, and the deadline.
  void handle(short events, Clock::time_point now);
  // Checks whether the client's identity is known by now. If so, the client's next message is read.
  void finish_proof();
  // Advances a waiting client as far as is possible now.
  void advance();
  // Sends a waiting client its place, so that it can distinguish a busy server from a dead one.
  void report_queue(Clock::time_point now);
  // The client as the pool sees it. Only in state kAdmitted.
  WorkerPool::Waiting waiting() const;
  void refuse(const Status& status);
  // Sends a Refusal if the client could read it, and ends the connection.
  void drop(const Status& status);

 private:
  bool is(State state) const { return state_ == state; }
  // All changes of state_ go through this function.
  void enter(State state, Clock::time_point deadline = Clock::time_point::max());
  void expire();
  bool is_served() const;  // whether the server serves this local client
  Status not_served();     // the refusal of a client that the server does not serve
  // The socket from which the client's messages come.
  const Socket& channel() const { return passage_ ? passage_->stream : socket_; }
  Status recognise(Entrance entrance);

  // introduction.cpp: the messages of the client
  void read();
  bool begins_tls() const;
  Status begin_tls();
  Status finish_tls();
  // Returns 0 if nothing has arrived; the connection may have ended.
  size_t receive(std::byte* data, size_t bytes);
  Status handle_message(wire::MessageType type, const std::vector<std::byte>& body);
  Status take_request(wire::MessageType type, const std::vector<std::byte>& body);
  Status pass_on(wire::MessageType type, const std::vector<std::byte>& body);
  Status look_up_export(const std::vector<std::byte>& body);
  Status give_ticket(const std::vector<std::byte>& body);
  Status take_ticket(const std::vector<std::byte>& body);
  Status take_proof(const std::vector<std::byte>& body);
  // Checks that the client may send a message of this type. On success the connection has an
  // identity.
  Status check_sender(wire::MessageType type);
  Status take_hello(const std::vector<std::byte>& body);
  Status check_hello(const wire::Hello& hello) const;
  Status carry_out();
  Status answer_lease_request();
  Viewer viewer() const;  // of the connection, once it has an identity
  void answer_gpu_query();
  void report_status();
  Result<UniqueFd> duplicate_socket() const;
  // Sends the client its last message, which may exceed the socket's buffer. The client has some
  // time to read it.
  void send_answer(wire::MessageType type, const std::vector<std::byte>& body);

  // waiting.cpp
  Status try_advance();
  bool find_account();
  Status apply();
  Status assign();
  void leave_queue();

  const ConnectionServices& services_;
  State state_ = State::kReading;
  Clock::time_point deadline_;
  const Clock::time_point introduce_by_;  // the deadline in Reading and Handshake
  Clock::time_point spared_until_{};
  Socket socket_;
  std::string name_;
  std::string origin_;
  const wire::TicketQuery ends_;  // the two ends of a TCP connection
  const bool local_;
  uid_t user_ = 0;  // of the process at the other end of a local connection
  // Set for a local connection if the kernel does not keep descriptors out of it (closer.h). Its
  // bytes then stay in the socket until a worker takes them.
  Closer* closer_ = nullptr;
  size_t peeked_ = 0;  // the bytes of handled messages that are still in the socket
  // When to read again. Set while bytes stay in the socket, because poll() would report them all
  // the time.
  std::optional<Clock::time_point> look_at_;
  std::optional<Doors::Passage> passage_;  // of a client that speaks TLS
  tls::Key binding_{}, session_key_{};     // of the TLS connection, after its handshake
  std::optional<Proof> proof_;             // in Held and Proving
  std::optional<Identity> identity_;       // once it is known
  wire::PartialMessage received_{kMostIntroduction};
  // In Naming: whether the client will be refused because the server does not serve its user. The
  // refusal waits for the look-up of the user's name, which it states.
  bool is_refused_ = false;
  // In Naming: the request that waits for the user's name; none: a Hello waits.
  std::optional<std::pair<wire::MessageType, std::vector<std::byte>>> request_;
  wire::LeaseRequest lease_request_;  // in Leasing
  Clock::time_point asked_at_{};      // in Measuring
  Unsent unsent_;                     // in Answering
  wire::Hello hello_;                 // of a client that wants a session: set from Naming on
  Clock::time_point waits_since_{};
  Clock::time_point report_at_{};                    // when to send the next kQueued
  std::unique_ptr<Admission::Applicant> applicant_;  // in Queued
  std::unique_ptr<Admission::Permit> permit_;        // in Admitted
};

}  // namespace rcuda::server
