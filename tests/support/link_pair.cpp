#include "tests/support/link_pair.h"

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <map>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/socket_io.h"
#include "common/tls/keyed.h"
#include "tests/support/lost_connections.h"
#include "tests/support/tcp_sockets.h"

namespace rcuda::test {
namespace {

using transport::Bootstrap;
using transport::Link;
using transport::LinkOptions;

std::string address_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr ? value : "127.0.0.1";
}

// Takes the daemon's place: assigns every connection to the only session.
class Listener {
 public:
  Listener() = default;
  explicit Listener(UniqueFd socket) : socket_(std::move(socket)) {}
  int descriptor() const { return socket_.get(); }

  Status open() {
    RCUDA_ASSIGN_OR_RETURN(socket_, listening_tcp(address_of("RCUDA_TEST_SERVER"), &port_));
    return {};
  }

  Result<UniqueFd> connect() const {
    return connected_tcp(address_of("RCUDA_TEST_SERVER"), port_, address_of("RCUDA_TEST_CLIENT"));
  }

  Result<UniqueFd> accept() const {
    UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) return Status::from_errno(errno, "cannot accept a connection of the test");
    return socket;
  }

 private:
  UniqueFd socket_;
  uint16_t port_ = 0;
};

Result<RawPair> control_sockets(const Medium& medium, const Listener& listener) {
  RawPair pair;
  if (medium.traits.reach == transport::Reach::kThisMachine) {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
      return Status::from_errno(errno, "socketpair");
    }
    pair.ours.reset(fds[0]);
    pair.theirs.reset(fds[1]);
    return pair;
  }
  Result<UniqueFd> ours = listener.connect();
  if (!ours) return ours.status();
  Result<UniqueFd> theirs = listener.accept();
  if (!theirs) return theirs.status();
  return RawPair{std::move(*ours), std::move(*theirs)};
}

// With RCUDA_TEST_ENCRYPTION, encrypts sockets of a network medium, as in a session with another
// machine.
Result<Socket> as_socket(Result<UniqueFd> socket, const Medium& medium, bool server,
                         Deadline deadline = std::chrono::steady_clock::now() +
                                             std::chrono::seconds(60)) {
  if (!socket) return socket.status();
  const bool network = medium.traits.reach == transport::Reach::kNetwork;
  if (!network || !std::getenv("RCUDA_TEST_ENCRYPTION")) return Socket(std::move(*socket));
  constexpr tls::Key kKey{1, 2, 3};
  return tls::encrypt(std::move(*socket), kKey, server ? tls::Role::kServer : tls::Role::kClient,
                      deadline);
}

Result<std::unique_ptr<Link>> make_end(const Medium& medium, UniqueFd control, bool server,
                                       const Listener& listener, const LinkOptions& options,
                                       const std::shared_ptr<LostConnections>& losses = nullptr) {
  Bootstrap bootstrap;
  if (losses) {
    bootstrap.reconnecting = server ? losses->server() : losses->client();
    losses->lose_later(control.get());
  }
  Result<Socket> encrypted = as_socket(std::move(control), medium, server);
  if (!encrypted) return encrypted.status();
  bootstrap.control = std::move(*encrypted);
  bootstrap.server = server;
  bootstrap.timeout = std::chrono::seconds(60);
  bootstrap.open_stream = [&](int) {
    Result<UniqueFd> socket = listener.connect();
    if (losses && socket.ok()) losses->lose_later(socket->get());
    return as_socket(std::move(socket), medium, server);
  };
  bootstrap.accept_stream = [&](int) { return as_socket(listener.accept(), medium, server); };
  return transport::make_link(medium, std::move(bootstrap), options);
}

Status open_if_needed(const Medium& medium, Listener& listener) {
  return medium.traits.reach == transport::Reach::kThisMachine ? Status() : listener.open();
}

}  // namespace

const Medium& medium_named(std::string_view name) {
  const Medium* const medium = transport::find_medium(name);
  if (!medium) std::abort();
  return *medium;
}

Result<LinkEnds> make_link_ends(const Medium& medium, const LinkOptions& client,
                                const LinkOptions& server) {
  Listener listener;
  RCUDA_RETURN_IF_ERROR(open_if_needed(medium, listener));
  Result<RawPair> sockets = control_sockets(medium, listener);
  if (!sockets) return sockets.status();
  const auto cutter = std::make_shared<UniqueFd>(::dup(sockets->ours.get()));
  std::shared_ptr<LostConnections> losses;
  if (std::getenv("RCUDA_TEST_LOSSES") != nullptr) {
    losses = std::make_shared<LostConnections>(
        [&medium](UniqueFd socket, bool server, Deadline deadline) {
          return as_socket(std::move(socket), medium, server, deadline);
        });
  }

  Result<std::unique_ptr<Link>> server_link =
      Status{Code::kInternal, "the server's Link was not made"};
  std::thread other([&] {
    server_link = make_end(medium, std::move(sockets->theirs), true, listener, server, losses);
  });
  Result<std::unique_ptr<Link>> client_link =
      make_end(medium, std::move(sockets->ours), false, listener, client, losses);
  other.join();
  if (losses) {
    losses->start();
    return LinkEnds{std::move(client_link), std::move(server_link), [losses] { losses->stop(); }};
  }
  return LinkEnds{std::move(client_link), std::move(server_link),
                  [cutter] { ::shutdown(cutter->get(), SHUT_RDWR); }};
}

Result<LinkPair> make_link_pair(const Medium& medium, const LinkOptions& client,
                                const LinkOptions& server) {
  Result<LinkEnds> ends = make_link_ends(medium, client, server);
  if (!ends) return ends.status();
  // Prefer the error of the side that gave up: the other side only sees the connection end.
  if (!ends->server && ends->server.status().code() != Code::kUnavailable) {
    return ends->server.status();
  }
  if (!ends->client) return ends->client.status();
  if (!ends->server) return ends->server.status();
  return LinkPair{std::move(*ends->client), std::move(*ends->server), std::move(ends->cut)};
}

Result<RawPair> make_socket_pair(const Medium& medium) {
  Listener listener;
  RCUDA_RETURN_IF_ERROR(open_if_needed(medium, listener));
  return control_sockets(medium, listener);
}

namespace {

constexpr char kPeerVariable[] = "RCUDA_TEST_PEER";

std::map<std::string, void (*)(Link&)>& roles() {
  static std::map<std::string, void (*)(Link&)> roles;
  return roles;
}

// The parameters of a peer process: its role, how to make its Link, and the descriptors that it
// inherits.
struct PeerOrders {
  std::string role;
  std::string medium;
  int control = -1;
  int listener = -1;
  size_t window_bytes = 0;
  long peer_timeout_ms = 0;

  std::string text() const {
    std::ostringstream out;
    out << role << ' ' << medium << ' ' << control << ' ' << listener << ' ' << window_bytes << ' '
        << peer_timeout_ms;
    return out.str();
  }
  static PeerOrders parse(const char* text) {
    PeerOrders orders;
    std::istringstream(text) >> orders.role >> orders.medium >> orders.control >> orders.listener >>
        orders.window_bytes >> orders.peer_timeout_ms;
    return orders;
  }
};

void keep_across_exec(int fd) {
  if (fd >= 0) ::fcntl(fd, F_SETFD, 0);
}

}  // namespace

PeerRole::PeerRole(const char* name, void (*body)(Link&)) { roles()[name] = body; }

bool run_peer_if_asked() {
  const char* text = std::getenv(kPeerVariable);
  if (text == nullptr) return false;
  const PeerOrders orders = PeerOrders::parse(text);
  ::unsetenv(kPeerVariable);
  LinkOptions options;
  options.window_bytes = orders.window_bytes;
  options.peer_timeout = std::chrono::milliseconds(orders.peer_timeout_ms);
  Result<std::unique_ptr<Link>> link =
      make_end(medium_named(orders.medium), UniqueFd(orders.control), true,
               Listener(UniqueFd(orders.listener)), options);
  if (!link) ::_exit(3);
  roles().at(orders.role)(**link);
  link->reset();
  ::_exit(0);
}

Result<PeerProcess> PeerProcess::start(const Medium& medium, const LinkOptions& own,
                                       const LinkOptions& peers, const char* role) {
  Listener listener;
  RCUDA_RETURN_IF_ERROR(open_if_needed(medium, listener));
  Result<RawPair> sockets = control_sockets(medium, listener);
  if (!sockets) return sockets.status();
  const PeerOrders orders{role,
                          medium.name(),
                          sockets->theirs.get(),
                          listener.descriptor(),
                          peers.window_bytes,
                          static_cast<long>(peers.peer_timeout.count())};
  const std::string variable = std::string(kPeerVariable) + "=" + orders.text();
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(const_cast<char*>(variable.c_str()));
  environment.push_back(nullptr);
  char program[] = "/proc/self/exe";
  char* const arguments[] = {program, nullptr};

  PeerProcess peer;
  peer.pid_ = ::fork();
  if (peer.pid_ < 0) return Status::from_errno(errno, "fork");
  if (peer.pid_ == 0) {
    keep_across_exec(orders.control);
    keep_across_exec(orders.listener);
    ::execve(program, arguments, environment.data());
    ::_exit(4);
  }
  sockets->theirs.reset();
  Result<std::unique_ptr<Link>> link =
      make_end(medium, std::move(sockets->ours), false, listener, own);
  if (!link) return link.status();
  peer.link_ = std::move(*link);
  return peer;
}

PeerProcess::PeerProcess(PeerProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), link_(std::move(other.link_)) {}

PeerProcess::~PeerProcess() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    wait();
  }
}

void PeerProcess::kill(int signal) { ::kill(pid_, signal); }

int PeerProcess::wait() {
  int status = -1;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return status;
}

}  // namespace rcuda::test
