#include "server/door/door.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <list>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/socket.h"
#include "common/base/socket_io.h"
#include "common/base/unique_fd.h"
#include "common/base/unsent.h"
#include "common/messages/handshake.h"
#include "common/messages/message_io.h"
#include "common/tls/handshake.h"
#include "server/sandbox/call_filter.h"
#include "server/sandbox/nobody.h"
#include "server/sandbox/start_process.h"

namespace rcuda::server {
namespace {

using Clock = std::chrono::steady_clock;
using wire::MessageType;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr rlim_t kMostMemory = RLIM_INFINITY;  // a sanitizer reserves terabytes
#else
constexpr rlim_t kMostMemory = 512u << 20;  // a client takes 45 KB, and up to 64 KB for a message
#endif
constexpr auto kReads = std::chrono::seconds(5);  // how long a client may take to read a record
constexpr size_t kRecord = 16u << 10;
// Two descriptors for each client. The daemon has at most 2048 clients that are not identified
// (Connections), and 1024 that wait for a session (Admission).
constexpr rlim_t kMostDescriptors = 2 * (2048 + 1024) + 16;
constexpr size_t kMostTakenAtOnce = 256;
// The time for handshakes in each round of serve(). The oldest clients come first.
constexpr auto kTimeForHandshakes = std::chrono::milliseconds(10);
// High enough that doors do not slow the daemon, and low enough that a door runs although workers
// use all processors.
constexpr int kNice = 3;

Status enter_sandbox(pid_t daemon) {
  RCUDA_RETURN_IF_ERROR(become_nobody());
  // PR_SET_PDEATHSIG comes after the change of the user, which resets it.
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0 || ::getppid() != daemon) {
    return Status(Code::kUnavailable, "the daemon has ended");
  }
  const auto limit = [](auto resource, rlim_t most) {
    rlimit now{};
    (void)::getrlimit(resource, &now);
    now.rlim_cur = now.rlim_max = std::min(most, now.rlim_max);
    return ::setrlimit(resource, &now) == 0;
  };
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0 || !limit(RLIMIT_CORE, 0) ||
      !limit(RLIMIT_AS, kMostMemory) || !limit(RLIMIT_NOFILE, kMostDescriptors)) {
    return Status::from_errno(errno, "limiting the resources of the process that speaks TLS");
  }
  return filter_calls(CallFilter::kStreamsOnly);
}

// A client, and the state of its connection.
class Client {
 public:
  Client(UniqueFd daemon, UniqueFd socket, std::unique_ptr<tls::Connection> connection)
      : daemon_(std::move(daemon)),
        handshake_(connection.get()),
        client_(std::move(socket), std::move(connection)) {}

  void add_descriptors(std::vector<pollfd>* items) const;
  Clock::time_point deadline() const {
    return unsent_.empty() ? Clock::time_point::max() : deadline_;
  }
  bool shakes_hands() const { return handshake_ != nullptr; }
  // Handles all that is possible without waiting. Returns false when the connection is over.
  bool go_on();

 private:
  bool pass_to_client();
  bool shake_hands();
  void pass_to_daemon();
  Status pass_message();
  // Uses send(), because the filter forbids sendmsg(). The stream has room for all messages of a
  // client.
  bool tell_daemon(std::span<const std::byte> bytes) const {
    const ssize_t sent = ::send(daemon_.get(), bytes.data(), bytes.size(), kNow);
    return sent == static_cast<ssize_t>(bytes.size());
  }

  static constexpr int kNow = MSG_DONTWAIT | MSG_NOSIGNAL;

  UniqueFd daemon_;
  tls::Connection* handshake_;  // null after the handshake
  Socket client_;
  short handshake_waits_for_ = POLLIN;
  int messages_left_ = 2;  // that the client may still send
  wire::PartialMessage message_{kMostIntroduction};
  Unsent unsent_;  // bytes for the client
  Clock::time_point deadline_{};
};

void Client::add_descriptors(std::vector<pollfd>* items) const {
  const bool waits = !unsent_.empty();
  short of_client = static_cast<short>((messages_left_ > 0 ? POLLIN : 0) | (waits ? POLLOUT : 0));
  if (handshake_) of_client = handshake_waits_for_;
  items->push_back({of_client != 0 ? client_.fd() : -1, of_client, 0});
  items->push_back({waits ? -1 : daemon_.get(), POLLIN, 0});
}

bool Client::go_on() {
  // Handles the daemon's bytes first: if the daemon has ended the connection, the expensive
  // handshake is not needed.
  if (!pass_to_client() || (handshake_ && !shake_hands())) return false;
  if (!handshake_ && messages_left_ > 0) pass_to_daemon();
  return Clock::now() < deadline();
}

// Returns false when the daemon has ended the connection, and the client's socket has taken all
// bytes.
bool Client::pass_to_client() {
  static std::byte some[kRecord];
  while (unsent_.send(client_)) {
    const ssize_t got = ::recv(daemon_.get(), some, sizeof some, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0 || handshake_) return false;
    unsent_.put({some, some + got});
    deadline_ = Clock::now() + kReads;
  }
  return true;
}

bool Client::shake_hands() {
  const auto progress = handshake_->shake_hands();
  if (progress.ok() && *progress != tls::Connection::Progress::kDone) {
    handshake_waits_for_ = *progress == tls::Connection::Progress::kWantsWrite ? POLLOUT : POLLIN;
    return true;
  }
  DoorReport report;
  if (progress.ok()) {
    report.proof = handshake_->exported(tls::kProofLabel);
    report.session = handshake_->exported(tls::kSessionLabel);
  } else {
    progress.status().context().copy(report.failure, sizeof report.failure - 1);
  }
  handshake_ = nullptr;
  const bool told = tell_daemon(bytes_of(report));
  ::explicit_bzero(&report, sizeof report);
  return told && progress.ok();
}

void Client::pass_to_daemon() {
  bool has_left = false;
  const auto receive = [&](std::byte* data, size_t bytes) {
    const ssize_t got = client_.recv(data, bytes, MSG_DONTWAIT);
    has_left = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
    return static_cast<size_t>(std::max<ssize_t>(got, 0));
  };
  Status status;
  while (status.ok() && messages_left_ > 0) {
    const Result<bool> whole = message_.add(receive);
    if (whole.ok() && !*whole && !has_left) return;
    if (has_left) status = {Code::kUnavailable, "the client has closed its connection"};
    if (!whole.ok()) status = whole.status();
    if (status.ok()) status = pass_message();
    --messages_left_;
  }
  if (status.ok()) return;
  messages_left_ = 0;
  ::shutdown(daemon_.get(), SHUT_WR);
  if (status.code() != Code::kProtocol || !unsent_.empty()) return;
  const wire::Refusal refusal{static_cast<uint32_t>(Code::kProtocol), status.context()};
  unsent_.put(wire::message_bytes(MessageType::kRefusal, wire::encode(refusal)));
  deadline_ = Clock::now() + kReads;
  (void)unsent_.send(client_);
}

Status Client::pass_message() {
  auto [type, body] = message_.take();
  if (type == MessageType::kAuthenticate) {
    RCUDA_ASSIGN_OR_RETURN(const auto decoded, wire::decode<wire::Authenticate>(body));
    body = wire::encode(decoded);
  }
  if (tell_daemon(wire::message_bytes(type, body))) return {};
  return {Code::kUnavailable, "the daemon has closed the connection"};
}

// Returns false when the daemon has closed the control socket.
bool take_clients(const tls::Acceptor& acceptor, std::list<Client>* clients) {
  for (size_t i = 0; i < kMostTakenAtOnce; ++i) {
    DoorHandover message;
    std::vector<UniqueFd> stream, socket;
    const auto got = try_recv_with_fds(kDoorControl, writable_bytes_of(message), stream);
    if (!got.ok()) return got.status().code() != Code::kUnavailable;
    if (*got == 0) return true;
    // A descriptor is lost if this process has no descriptor number left.
    if (stream.size() != 1 || !stream.front()) continue;
    (void)try_recv_with_fds(stream.front().get(), writable_bytes_of(message), socket);
    if (socket.size() != 1 || !socket.front()) continue;
    try {
      auto connection = acceptor.accept(socket.front().get());
      if (!connection.ok()) continue;
      clients->emplace_back(std::move(stream.front()), std::move(socket.front()),
                            std::move(connection).value());
    } catch (const std::bad_alloc&) {
      continue;  // drops only this client, as goes_on() does
    }
  }
  return true;
}

// Without memory for a client, the door drops this client only.
bool goes_on(Client* client) {
  try {
    return client->go_on();
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void serve(const tls::Acceptor& acceptor) {
  std::list<Client> clients;
  Clock::time_point end = Clock::time_point::max();
  while (end == Clock::time_point::max() || (!clients.empty() && Clock::now() < end)) {
    std::vector<pollfd> items = {{end == Clock::time_point::max() ? kDoorControl : -1, POLLIN, 0}};
    Clock::time_point next = end;
    for (const Client& client : clients) {
      client.add_descriptors(&items);
      next = std::min(next, client.deadline());
    }
    (void)::poll(items.data(), items.size(), poll_timeout_ms(next));
    const pollfd* item = &items[1];
    const Clock::time_point now = Clock::now();
    for (auto client = clients.begin(); client != clients.end(); item += 2) {
      const bool is_postponed = client->shakes_hands() && Clock::now() - now > kTimeForHandshakes;
      const bool is_due =
          !is_postponed && ((item[0].revents | item[1].revents) != 0 || now >= client->deadline());
      client = is_due && !goes_on(&*client) ? clients.erase(client) : std::next(client);
    }
    if (items[0].revents != 0 && !take_clients(acceptor, &clients)) end = now + kReadsRest;
  }
}

}  // namespace

int run_door() {
  ::signal(SIGHUP, SIG_IGN);
  if (::getpriority(PRIO_PROCESS, 0) < kNice) (void)::setpriority(PRIO_PROCESS, 0, kNice);
  const pid_t daemon = ::getppid();
  close_descriptors_from(kDoorControl + 1);
  // Redirects stdout and stderr to /dev/null, so that no output of a library reaches a client's
  // socket or the server's log.
  UniqueFd log(::dup(STDERR_FILENO));
  ::dup2(STDIN_FILENO, STDOUT_FILENO);
  ::dup2(STDIN_FILENO, STDERR_FILENO);
  const Result<tls::Acceptor> acceptor = tls::Acceptor::create();
  Status status = acceptor.status();
  if (status.ok()) status = enter_sandbox(daemon);
  if (!status.ok()) {
    ::dprintf(log.get(), "rcuda-server: a process that speaks TLS cannot start: %s\n",
              status.context().c_str());
    return 1;
  }
  log.reset();
  serve(*acceptor);
  ::_exit(0);
}

}  // namespace rcuda::server
