// Finds and reaches a server: name resolution, choice of medium, the connecting socket. Used by
// clients and tools, and by workers to connect to workers of other servers and to look up exports.
// Servers listen at LocalAddress.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sys/socket.h>
#include <sys/un.h>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/messages/handshake.h"
#include "common/tls/connection.h"
#include "common/transport/media.h"

namespace rcuda::wire {

struct Connection {
  Socket socket;
  const transport::Medium* medium = nullptr;  // the medium to use over this socket; never null
  // The medium to use if the worker refuses `medium` or making the Link over it fails. Null: none.
  const transport::Medium* fallback = nullptr;
  // The session's key. Set if the client identified itself under TLS: every socket of the session
  // is then encrypted with it.
  std::optional<tls::Key> key;
  tls::Key binding{};         // with `key`: the binding for proofs (common/tls/proof.h)
  bool has_worker = false;    // a worker is at the other end
  bool must_encrypt = false;  // RCUDA_SECURITY=tls: only media that encrypt are chosen
};

// Connects to a server. If `medium` is null, chooses a plain_medium() (common/transport/media.h):
// that of Reach::kThisMachine if `host` is this machine and a server has a local socket for the
// port, otherwise that of Reach::kNetwork. Name resolution may block without limit; after it,
// the call blocks for `timeout` at most. Errors name host, port and remedy. kDenied if this
// machine's server does not run as this user, root or a user of `trusted` (RCUDA_TRUST_USER).
Result<Connection> connect_server(const std::string& host, uint16_t port,
                                  const transport::Medium* medium,
                                  std::chrono::milliseconds timeout,
                                  const std::vector<uid_t>& trusted = {});

// Connects to the local socket of this machine's server for the port. Errors and `trusted` as for
// connect_server(). kUnavailable: no server listens there.
Result<UniqueFd> connect_local_server(uint16_t port, const std::vector<uid_t>& trusted,
                                      std::chrono::steady_clock::time_point deadline);

// For a connection whose medium the user has not chosen: chooses the best medium of its reach that
// this side supports, with the plain medium as fallback. Returns why better media were not chosen;
// empty: none is better. Call it after identify(). May block while a library is loaded.
std::string choose_medium(Connection* connection);

// If both ends of `socket` are on this machine, gets a ticket over the server's local socket and
// presents it. Returns false if there is no ticket, because the server is on another machine or has
// no local socket here (a proxy). identify() then continues with TLS. `trusted`: as for
// connect_server().
Result<bool> present_ticket(int socket, const std::vector<uid_t>& trusted,
                            std::chrono::steady_clock::time_point deadline);

// For a kTimeout or kUnavailable of a handshake, returns an error whose text asks whether an
// rcuda-server of the same release listens there. Returns other errors unchanged.
Status no_server(const Status& status);

// Requests a session and waits for a worker's Welcome. From then on, the worker is at the other end
// of the connection. Sets the media of `hello` to the connection's media. If the worker chooses the
// fallback, the fallback becomes the connection's medium.
// `patience`: how long the server may be silent; while the client waits, the server sends Queued
// every second. Calls `waits` for each Queued that has the client's place in the queue
// (Hello::wait_ms). The error of a refusal has the server's reason. Its code is kUnavailable or
// kTimeout if the server says so, else kDenied.
Result<Welcome> request_session(Connection* connection, Hello hello,
                                std::chrono::milliseconds patience,
                                const std::function<void(const Queued&)>& waits = {});

struct LinkTimeouts {
  std::chrono::milliseconds whole;            // for the worker to do its part of the Link
  std::chrono::milliseconds connecting;       // for each further socket
  std::chrono::milliseconds reconnecting{0};  // Welcome::reconnect_ms
  std::string name;                           // of the worker, for the log
};
// Makes the client's end of a session's Link. `connection` has received the worker's Welcome, with
// this token. If the connection's medium fails and there is a fallback, makes the Link over the
// fallback and logs the failure. Errors: see transport::make_link().
Result<std::unique_ptr<transport::Link>> link_to_worker(Connection connection,
                                                        const uint8_t (&token)[16],
                                                        const transport::LinkOptions& options,
                                                        const LinkTimeouts& timeouts);

// The local socket address of a server, for clients on the same machine. Every server has an
// abstract Unix socket. The socket disappears with the server, but any user may take the name
// first. So a server of root also has a socket in a folder that only root can write, and clients
// look there first. A container has the server's kContainersFolder at the path of root's folder.
// The server treats clients that connect through kContainersFolder as clients of another machine.
class LocalAddress {
 public:
  static constexpr const char* kRootsFolder = "/run/rcuda";
  static constexpr const char* kContainersFolder = "/run/rcuda/containers";

  explicit LocalAddress(uint16_t port);                // the abstract socket
  static LocalAddress in_roots_folder(uint16_t port);  // /run/rcuda/8308.sock
  static LocalAddress for_containers(uint16_t port);   // /run/rcuda/containers/8308.sock
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  socklen_t bytes() const { return bytes_; }
  std::string text() const;  // "@rcuda-8308", or the path

 private:
  LocalAddress() = default;
  static LocalAddress at(const std::string& path);

  sockaddr_un address_{};
  socklen_t bytes_;
};

// Connects to a server by TCP. Name resolution may block without limit; after it, the call blocks
// until `deadline` at most. kNotFound: there is no such host. kUnavailable: no address answers.
Result<UniqueFd> connect_tcp(const std::string& host, uint16_t port,
                             std::chrono::steady_clock::time_point deadline);
// The address of the other end of a TCP socket, for further connections to it. A second resolution
// of the host name could return another host.
struct PeerAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
};
Result<PeerAddress> peer_address(int socket);
// Connects to `peer`, until `deadline` at most. kUnavailable: the address does not answer.
Result<UniqueFd> connect_again(const PeerAddress& peer,
                               std::chrono::steady_clock::time_point deadline);
// Reads the answer to an Attach or PeerHello that replaces a lost socket. `lost`: the words of the
// error message for the thing that ends after a refusal ("the session", "the connection"). Any
// error but kNotFound may be temporary.
Status read_attached(int socket, const char* lost, std::chrono::steady_clock::time_point deadline);

}  // namespace rcuda::wire
