#include "common/reach/connect.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/time.h>
#include <unistd.h>

#include "common/base/host_port.h"
#include "common/base/limit_remedy.h"
#include "common/base/log.h"
#include "common/base/passed_descriptors.h"
#include "common/base/socket_io.h"
#include "common/messages/message_io.h"
#include "common/messages/refusal.h"
#include "common/reach/same_host.h"
#include "common/reach/session_link.h"
#include "common/reach/socket_keys.h"
#include "common/reach/trusted_users.h"
#include "common/tls/keyed.h"

namespace rcuda::wire {
namespace {

using Clock = std::chrono::steady_clock;
using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<AddressList> resolve_host(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0) {
    const Code code = error == EAI_NONAME ? Code::kNotFound : Code::kUnavailable;
    return Status(code, "cannot resolve the host \"" + host + "\" (" + gai_strerror(error) +
                            "): check its name (in RCUDA_DEVICES or on the command "
                            "line)");
  }
  return AddressList(list, &freeaddrinfo);
}

// If the interfaces cannot be queried, the host counts as another machine.
bool is_this_machine(const addrinfo* addresses) {
  std::vector<Endpoint> endpoints;
  for (const addrinfo* address = addresses; address; address = address->ai_next) {
    endpoints.push_back(endpoint_of(address->ai_addr));
  }
  const Result<bool> found = any_on_this_machine(endpoints);
  return found.ok() && *found;
}

// Sets SO_SNDTIMEO. A `timeout` of zero means no limit.
void set_send_timeout(int socket, std::chrono::microseconds timeout) {
  const timeval value{timeout.count() / 1'000'000, timeout.count() % 1'000'000};
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &value, sizeof value);
}

// Connects a socket that accepts no descriptors, because the server is not trusted yet. Returns 0
// or an errno. connect() waits while the server's queue of connections is full; SO_SNDTIMEO limits
// this wait.
int connect_local(const LocalAddress& address, Clock::time_point deadline, UniqueFd* out) {
  using std::chrono::microseconds;
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return errno;
  (void)take_descriptors(socket.get(), false);
  int error;
  do {
    const auto left = std::chrono::ceil<microseconds>(deadline - Clock::now());
    set_send_timeout(socket.get(), std::max(left, microseconds(1)));
    error = ::connect(socket.get(), address.get(), address.bytes()) == 0 ? 0 : errno;
  } while (error == EINTR && Clock::now() < deadline);
  *out = std::move(socket);
  return error;
}

// Connects to one address. Returns 0 or an errno.
int connect_address(const addrinfo& address, Clock::time_point deadline, UniqueFd* out) {
  UniqueFd socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return errno;
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return errno;
    pollfd wait{socket.get(), POLLOUT, 0};
    int ready;
    do {
      ready = ::poll(&wait, 1, poll_timeout_ms(deadline));
    } while (ready < 0 && errno == EINTR);
    if (ready <= 0) return ready == 0 ? ETIMEDOUT : errno;
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return error;
  }
  const int flags = fcntl(socket.get(), F_GETFL);
  fcntl(socket.get(), F_SETFL, flags & ~O_NONBLOCK);
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  *out = std::move(socket);
  return 0;
}

// Each address gets an equal share of the remaining time, so an address that does not answer (IPv6
// that a firewall drops) leaves time for the other addresses.
Result<UniqueFd> connect_any(const addrinfo* addresses, const std::string& where,
                             Clock::time_point deadline) {
  int left = 0;
  for (const addrinfo* address = addresses; address; address = address->ai_next) ++left;
  int error = EHOSTUNREACH;
  for (const addrinfo* address = addresses; address; address = address->ai_next) {
    const Clock::time_point now = Clock::now();
    UniqueFd socket;
    const int result = connect_address(*address, now + (deadline - now) / left--, &socket);
    if (result == 0) return socket;
    // Keeps ECONNREFUSED, because it says more than a later error of an unreachable address.
    if (error != ECONNREFUSED) error = result;
  }
  std::string remedy = "check host and port, and that rcuda-server runs there";
  if (error == ECONNREFUSED) {
    remedy =
        "nothing listens there: start rcuda-server (--listen for other hosts), or correct the "
        "port: the server's log has its port (\"serving ... on\")";
  }
  if (error == ETIMEDOUT) remedy = "no answer: check the host, the network and its firewall";
  if (*limit_remedy(error)) remedy = limit_remedy(error) + 2;  // without "; "
  return Status(Code::kUnavailable,
                "cannot connect to " + where + " (" + std::strerror(error) + "); " + remedy);
}

Status unexpected(const char* request, MessageType type) {
  return Status(Code::kProtocol, std::string("the server answered ") + request +
                                     " with the unexpected message type " +
                                     std::to_string(static_cast<uint32_t>(type)) +
                                     ": install the same build of rcuda on both sides");
}

// Encrypts the connection, which now leads to a worker, if the session has a key.
Status meet_worker(Connection* connection, Clock::time_point deadline) {
  if (!connection->key) return {};
  const tls::Key key = socket_key(*connection->key, kControlSocket, 0);
  RCUDA_ASSIGN_OR_RETURN(
      Socket stream, tls::encrypt(connection->socket.release(), key, tls::Role::kClient, deadline));
  connection->socket = std::move(stream);
  return {};
}

// If the worker chose the fallback (Welcome::fell_back), makes the fallback the connection's
// medium.
Result<Welcome> welcomed(Connection* connection, Result<Welcome> welcome) {
  if (!welcome || welcome->fell_back.empty()) return welcome;
  if (!connection->fallback) {
    return Status(Code::kProtocol, std::string("the worker refused ") + connection->medium->name() +
                                       " (" + welcome->fell_back +
                                       "), but this client has offered no other medium");
  }
  connection->medium = std::exchange(connection->fallback, nullptr);
  return welcome;
}

}  // namespace

LocalAddress::LocalAddress(uint16_t port) {
  address_.sun_family = AF_UNIX;
  // A name that begins with a zero byte is abstract.
  const std::string name = '\0' + ("rcuda-" + std::to_string(port));
  std::memcpy(address_.sun_path, name.data(), name.size());
  bytes_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
}

LocalAddress LocalAddress::at(const std::string& path) {
  LocalAddress made;
  made.address_.sun_family = AF_UNIX;
  std::memcpy(made.address_.sun_path, path.c_str(), path.size() + 1);
  made.bytes_ = sizeof made.address_;
  return made;
}

LocalAddress LocalAddress::in_roots_folder(uint16_t port) {
  return at(std::string(kRootsFolder) + "/" + std::to_string(port) + ".sock");
}

LocalAddress LocalAddress::for_containers(uint16_t port) {
  return at(std::string(kContainersFolder) + "/" + std::to_string(port) + ".sock");
}

std::string LocalAddress::text() const {
  if (address_.sun_path[0] != '\0') return address_.sun_path;
  return std::string("@") + (address_.sun_path + 1);
}

// The client first looks for a server in root's folder, where only root can listen, then under an
// abstract name. Any process can take this name, so the client checks the user of the server.
Result<UniqueFd> connect_local_server(uint16_t port, const std::vector<uid_t>& trusted,
                                      Clock::time_point deadline) {
  using std::chrono::microseconds;
  UniqueFd socket;
  int error = connect_local(LocalAddress::in_roots_folder(port), deadline, &socket);
  const bool closed = error == EACCES;
  const bool is_roots = error == 0 || error == EAGAIN || error == EINTR;
  if (!is_roots) error = connect_local(LocalAddress(port), deadline, &socket);
  if (error == ECONNREFUSED && closed) {
    return Status(Code::kUnavailable,
                  "the rcuda-server of root for port " + std::to_string(port) +
                      " does not serve this user (setting \"users\"), or has ended: ask its "
                      "administrator to add you or to start it, or start your own server: "
                      "rcuda-server --port PORT");
  }
  if (error == EAGAIN || error == EINTR) {
    return Status(Code::kTimeout, "the rcuda-server on this machine for port " +
                                      std::to_string(port) +
                                      " does not accept connections: its process may be "
                                      "suspended, or overloaded; see its log");
  }
  if (*limit_remedy(error)) {
    return Status::from_errno(
        error,
        "cannot connect to the rcuda-server on this machine for port " + std::to_string(port));
  }
  if (error != 0) {
    return Status(Code::kUnavailable, "no rcuda-server listens on this machine for port " +
                                          std::to_string(port) + " (" + std::strerror(error) +
                                          "); start one: rcuda-server --port " +
                                          std::to_string(port) +
                                          ", or name the port of one that runs (ss -xl shows "
                                          "@rcuda-PORT)");
  }
  set_send_timeout(socket.get(), microseconds(0));
  RCUDA_ASSIGN_OR_RETURN(const ucred server, peer_credentials(socket.get()));
  RCUDA_RETURN_IF_ERROR(check_trust("the rcuda-server for port " + std::to_string(port), server.uid,
                                    ::geteuid(), trusted));
  (void)take_descriptors(socket.get(), true);
  return socket;
}

Result<UniqueFd> connect_tcp(const std::string& host, uint16_t port, Clock::time_point deadline) {
  RCUDA_ASSIGN_OR_RETURN(AddressList addresses, resolve_host(host, port));
  return connect_any(addresses.get(), host_and_port(host, port), deadline);
}

Result<PeerAddress> peer_address(int socket) {
  PeerAddress peer;
  peer.bytes = sizeof peer.storage;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer.storage), &peer.bytes) != 0) {
    return Status::from_errno(errno, "reading the server's address (getpeername)");
  }
  return peer;
}

Result<UniqueFd> connect_again(const PeerAddress& peer, Clock::time_point deadline) {
  PeerAddress copy = peer;
  auto* const address = reinterpret_cast<sockaddr*>(&copy.storage);
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  getnameinfo(address, copy.bytes, host, sizeof host, port, sizeof port,
              NI_NUMERICHOST | NI_NUMERICSERV);
  addrinfo only{};
  only.ai_family = copy.storage.ss_family;
  only.ai_addr = address;
  only.ai_addrlen = copy.bytes;
  return connect_any(&only, std::string(host) + ":" + port, deadline);
}

Result<bool> present_ticket(int socket, const std::vector<uid_t>& trusted,
                            Clock::time_point deadline) {
  RCUDA_ASSIGN_OR_RETURN(const Endpoint own, own_endpoint(socket));
  RCUDA_ASSIGN_OR_RETURN(const Endpoint server, peer_endpoint(socket));
  const Result<bool> stays_here = any_on_this_machine({&server, 1});
  if (!stays_here.ok() || !*stays_here) return false;
  const Result<UniqueFd> local = connect_local_server(server.port, trusted, deadline);
  if (local.status().code() == Code::kUnavailable) return false;
  if (!local) return local.status();
  // A server that does not serve this user sends a Refusal and reads nothing. So an error of this
  // write is ignored: the answer has the reason.
  (void)write_message(local->get(), MessageType::kTicketQuery, encode(TicketQuery{own, server}),
                      deadline);
  auto answer = read_message(local->get(), deadline);
  if (!answer) {
    return Status(answer.status().code(), "this machine's rcuda-server issued no ticket (" +
                                              answer.status().context() + "): see its log");
  }
  if (answer->first == MessageType::kRefusal) {
    return refusal_error(answer->second, "no ticket was issued", Code::kDenied);
  }
  if (answer->first != MessageType::kTicket) {
    return unexpected("a TicketQuery", answer->first);
  }
  RCUDA_RETURN_IF_ERROR(write_message(socket, MessageType::kTicket, answer->second, deadline));
  return true;
}

Result<Connection> connect_server(const std::string& host, uint16_t port,
                                  const transport::Medium* medium,
                                  std::chrono::milliseconds timeout,
                                  const std::vector<uid_t>& trusted) {
  using transport::plain_medium, transport::Reach;
  RCUDA_ASSIGN_OR_RETURN(AddressList addresses, resolve_host(host, port));
  const Clock::time_point deadline = Clock::now() + timeout;
  if (!medium || medium->traits.reach == Reach::kThisMachine) {
    if (is_this_machine(addresses.get())) {
      Result<UniqueFd> socket = connect_local_server(port, trusted, deadline);
      if (socket) {
        return Connection{std::move(socket).value(),
                          medium ? medium : &plain_medium(Reach::kThisMachine)};
      }
      const bool listens = socket.status().code() != Code::kUnavailable;
      if (medium || listens) return socket.status();
    } else if (medium) {
      return Status(Code::kInvalidArgument, host + " is another machine; " + medium->name() +
                                                " works on one machine only: use " +
                                                transport::medium_names(Reach::kNetwork));
    }
  }
  RCUDA_ASSIGN_OR_RETURN(UniqueFd socket,
                         connect_any(addresses.get(), host_and_port(host, port), deadline));
  return Connection{std::move(socket), medium ? medium : &plain_medium(Reach::kNetwork)};
}

std::string choose_medium(Connection* connection) {
  const transport::Choice choice =
      transport::best_medium(connection->medium->traits.reach, connection->socket.fd(),
                             connection->must_encrypt ? "RCUDA_SECURITY is tls" : "");
  const transport::Medium& plain = transport::plain_medium(connection->medium->traits.reach);
  connection->medium = choice.medium;
  connection->fallback = choice.medium == &plain ? nullptr : &plain;
  return choice.why;
}

Status no_server(const Status& status) {
  constexpr const char* kRemedy =
      ": is it an rcuda-server of the same release? Check host and port in RCUDA_DEVICES, and the "
      "server's log, which has its port (\"serving ... on\")";
  if (status.code() == Code::kTimeout) {
    return Status(status.code(),
                  std::string("the server accepted the connection and does not answer") + kRemedy);
  }
  if (status.code() == Code::kUnavailable) {
    return Status(status.code(),
                  std::string("the server closed the connection in the handshake") + kRemedy);
  }
  return status;
}

Result<Welcome> request_session(Connection* connection, Hello hello,
                                std::chrono::milliseconds patience,
                                const std::function<void(const Queued&)>& waits) {
  hello.medium = connection->medium->name();
  hello.fallback = connection->fallback ? connection->fallback->name() : "";
  // A server that refuses a connection closes it without reading, so this write may fail; the
  // server's reason can still be read.
  const Status sent = write_message(connection->socket, MessageType::kHello, encode(hello),
                                    Clock::now() + patience);
  if (sent.code() == Code::kTimeout) return no_server(sent);
  const Clock::time_point wait_ends =
      Clock::now() + std::chrono::milliseconds(hello.wait_ms) + patience;
  while (true) {
    auto message = read_message(connection->socket, Clock::now() + patience);
    if (!message) return no_server(sent.ok() ? message.status() : sent);
    switch (message->first) {
      case MessageType::kQueued: {  // place 0: a wait for a worker, which only the server ends
        RCUDA_ASSIGN_OR_RETURN(const Queued queued, decode<Queued>(message->second));
        if (queued.place != 0 && Clock::now() >= wait_ends) {
          return Status(
              Code::kTimeout,
              "the server neither granted nor refused a session within RCUDA_WAIT: see its log");
        }
        if (queued.place != 0 && waits) waits(queued);
        continue;
      }
      case MessageType::kAssigned:
        connection->has_worker = true;
        RCUDA_RETURN_IF_ERROR(meet_worker(connection, Clock::now() + patience));
        continue;
      case MessageType::kWelcome:
        connection->has_worker = true;
        return welcomed(connection, decode<Welcome>(message->second));
      case MessageType::kRefusal:
        // Callers may try again after kUnavailable. kTimeout: the server did not answer or start a
        // worker in time. All other codes become kDenied.
        return refusal_error(message->second, "the session was refused", Code::kDenied,
                             {Code::kUnavailable, Code::kTimeout});
      default:
        return unexpected("a session request", message->first);
    }
  }
}

namespace {

// Opens the further sockets of a session.
struct FurtherSockets {
  PeerAddress worker;
  uint8_t token[16] = {};
  std::optional<tls::Key> key;

  // Opens a socket and sends `attach`, with the session's name and the token for its index and
  // attempt.
  Result<Socket> open(Attach attach, Clock::time_point deadline) const {
    RCUDA_ASSIGN_OR_RETURN(UniqueFd socket, connect_again(worker, deadline));
    std::ranges::copy(attach_name(token), attach.session);
    std::ranges::copy(attach_token(token, attach.index, attach.attempt), attach.token);
    RCUDA_RETURN_IF_ERROR(
        write_message(socket.get(), MessageType::kAttach, encode(attach), deadline));
    if (attach.attempt != 0) {
      RCUDA_RETURN_IF_ERROR(read_attached(socket.get(), "the session", deadline));
    }
    if (!key) return Socket(std::move(socket));
    return tls::encrypt(std::move(socket), socket_key(*key, attach.index, attach.attempt),
                        tls::Role::kClient, deadline);
  }
};

}  // namespace

Status read_attached(int socket, const char* lost, Clock::time_point deadline) {
  RCUDA_ASSIGN_OR_RETURN(const auto answer, read_message(socket, deadline));
  if (answer.first == MessageType::kAttached) return {};
  if (answer.first != MessageType::kRefusal) {
    return {Code::kUnavailable,
            unexpected("a request for a further connection", answer.first).context()};
  }
  return refusal_error(answer.second, std::string(lost) + " cannot go on", Code::kUnavailable,
                       {Code::kNotFound});
}

Result<std::unique_ptr<transport::Link>> link_to_worker(Connection connection,
                                                        const uint8_t (&token)[16],
                                                        const transport::LinkOptions& options,
                                                        const LinkTimeouts& timeouts) {
  FurtherSockets sockets;
  const bool local = connection.medium->traits.reach == transport::Reach::kThisMachine;
  if (!local) {
    RCUDA_ASSIGN_OR_RETURN(sockets.worker, peer_address(connection.socket.fd()));
  }
  std::ranges::copy(token, sockets.token);
  sockets.key = connection.key;
  transport::Bootstrap bootstrap;
  bootstrap.control = std::move(connection.socket);
  bootstrap.timeout = timeouts.whole;
  bootstrap.open_stream = [sockets, connecting = timeouts.connecting](int index) {
    return sockets.open({.index = static_cast<uint32_t>(index)}, Clock::now() + connecting);
  };
  bootstrap.reconnecting.limit = timeouts.reconnecting;
  bootstrap.reconnecting.connects = true;
  bootstrap.reconnecting.peer = timeouts.name;
  bootstrap.reconnecting.next =
      [sockets, attempts = std::make_shared<std::array<std::atomic<uint32_t>, kMostSockets>>()](
          int number, Clock::time_point deadline) {
        const auto index = static_cast<uint32_t>(number);
        return sockets.open({.index = index, .attempt = ++(*attempts)[index]}, deadline);
      };
  RCUDA_ASSIGN_OR_RETURN(
      SessionLink made,
      make_session_link({connection.medium, connection.fallback}, std::move(bootstrap), options));
  if (!made.refused.ok()) {
    RCUDA_WARN("falling back to %s: cannot connect over %s: %s", connection.fallback->name(),
               connection.medium->name(), made.refused.context().c_str());
  }
  return std::move(made.link);
}

}  // namespace rcuda::wire
