// A daemon, its door and its clients in one process and one thread, for the door fuzzers. The
// daemon runs its loop once after each action of a client or of the door.
//
// DoorWorld has the daemon, which has a certificate, a token, and a MUNGE that accepts the fuzzer's
// credentials. The daemon has no workers, so a session stays queued. DoorWorld also plays the
// daemon's door (server/door), which may lie. DoorClient is one connection to the daemon, directly
// or through the door. It checks each message that it receives: before a client has identified
// itself, the daemon may send only a Refusal and, through the door, a Challenge.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/socket_io.h"
#include "common/base/unique_fd.h"
#include "common/identity/certificate.h"
#include "common/messages/message_io.h"
#include "common/reach/same_host.h"
#include "common/tls/proof.h"
#include "common/wire/protocol.h"
#include "server/daemon/daemon.h"
#include "server/door/door.h"
#include "server/identity/token_store.h"
#include "tests/fuzz/accepted.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_folder.h"

namespace rcuda::fuzz {

using std::chrono::milliseconds;

class DoorWorld {
 public:
  DoorWorld() {
    const auto set = [](config::SettingBase& setting, const std::string& text) {
      must(setting.set(text, "fuzz", "the fuzzer").ok());
    };
    set(settings_.port, "0");
    set(settings_.pool, "0");
    set(settings_.cgroup, "none");
    set(settings_.devices, "0,1");
    set(settings_.users, "root");  // the users whom the token below may name
    set(settings_.certificate, folder_.file("server.pem"));
    set(settings_.tokens, folder_.file("tokens"));
    const passwd* const account = ::getpwuid(::geteuid());
    const std::string user = account ? account->pw_name : std::to_string(::geteuid());
    const auto authority = test::make_certificate("users", nullptr, true);
    set(settings_.client_authorities, folder_.write("users.crt", authority.certificate_pem()));
    user_ = test::signer(test::make_certificate(user, &authority, false));
    settings_.worker_binary = "/bin/false";
    const auto certificate =
        identity::load_or_make_certificate(settings_.certificate.get(), "server");
    must(certificate.ok());
    server::NewToken wanted;
    wanted.user = user;
    wanted.fingerprint = *identity::fingerprint_of(certificate->x509.get());
    const auto token = server::create_token(settings_.tokens.get(), wanted, server::Seconds());
    must(token.ok());
    token_ = *token;
  }

  // Makes a new daemon. Call it before all other functions.
  void start() {
    daemon_.reset();
    int ends[2];
    must(::pipe2(ends, O_CLOEXEC) == 0);
    const UniqueFd ready(ends[0]);
    const UniqueFd port_to(ends[1]);
    control_.reset();
    daemon_ = std::make_unique<server::Daemon>(
        settings_, -1, port_to.get(), server::Daemon::Start{}, [&](int control) {
          pollfd item{control_.get(), 0, 0};
          if (control_ && ::poll(&item, 1, 0) == 0) {
            return Result<pid_t>(Status(Code::kUnavailable, "there is one door"));
          }
          control_.reset(::fcntl(control, F_DUPFD_CLOEXEC, 3));
          return Result<pid_t>(0);
        });
    must(daemon_->open().ok());
    turn();
    char text[8] = {};
    must(::read(ready.get(), text, sizeof text - 1) > 0);
    port_ = static_cast<uint16_t>(std::stoi(text));
  }

  void turn(milliseconds longest_wait = milliseconds(0)) {
    const auto goes_on = daemon_->take_turn(longest_wait);
    must(goes_on.ok() && *goes_on);
  }

  UniqueFd connect(bool local) {
    UniqueFd socket(::socket(local ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_storage address{};
    socklen_t bytes = sizeof(sockaddr_in);
    if (local) {
      auto& name = reinterpret_cast<sockaddr_un&>(address);
      name.sun_family = AF_UNIX;
      const std::string text = "rcuda-" + std::to_string(port_);
      text.copy(name.sun_path + 1, sizeof name.sun_path - 1);
      bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
    } else {
      auto& name = reinterpret_cast<sockaddr_in&>(address);
      name.sin_family = AF_INET;
      name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      name.sin_port = htons(port_);
    }
    must(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), bytes) == 0);
    if (!local) {
      const int yes = 1;
      ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
      // The connection ends by a reset, so no port stays in TIME_WAIT.
      const linger at_once{1, 0};
      ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    }
    turn();
    return socket;
  }

  const identity::Token& token() const { return token_; }
  const identity::Certificate& user() const { return user_; }
  int control() const { return control_.get(); }
  void end_door() { control_.reset(); }
  // Returns the stream of the client that has just begun TLS, empty if the daemon has not passed
  // the client to the door.
  UniqueFd stream() {
    UniqueFd last;
    for (;;) {
      server::DoorHandover message;
      std::vector<UniqueFd> stream, client;
      (void)recv_with_fds(control_.get(), writable_bytes_of(message), stream, Deadline());
      if (stream.empty()) return last;
      last = std::move(stream.front());
      must(recv_with_fds(last.get(), writable_bytes_of(message), client, Deadline()).ok());
    }
  }

 private:
  test::TempFolder folder_;
  server::Settings settings_;
  identity::Token token_;
  identity::Certificate user_;  // a user's certificate, which the daemon accepts
  std::unique_ptr<server::Daemon> daemon_;
  UniqueFd control_;  // the door's end
  uint16_t port_ = 0;
};

class DoorClient {
 public:
  DoorClient(DoorWorld& world, bool local)
      : world_(world), socket_(world.connect(local)), is_known_(local) {}

  // If the client's bytes happened to begin TLS, takes its stream from the door and closes it, as
  // an honest door does after the client has left.
  ~DoorClient() { (void)world_.stream(); }
  DoorClient(const DoorClient&) = delete;
  DoorClient& operator=(const DoorClient&) = delete;

  // Sends bytes on the TCP connection, even after TLS has begun.
  void send_raw(const std::string& bytes) {
    if (!bytes.empty()) {
      (void)::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    step();
  }
  // Sends bytes of the protocol: after go_through_door() through the door, otherwise directly.
  void send(const std::string& bytes) {
    if (!stream_) return send_raw(bytes);
    (void)::send(stream_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    step();
  }
  void send(wire::MessageType type, const std::vector<std::byte>& body) {
    const wire::MessageHeader header{wire::kMagic, wire::kProtocolVersion, type,
                                     static_cast<uint32_t>(body.size())};
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
    send(bytes.append(reinterpret_cast<const char*>(body.data()), body.size()));
  }
  void end_of_data() {
    ::shutdown(socket_.get(), SHUT_WR);
    step();
  }
  // Waits up to 10 ms for an answer that the daemon computes on another thread.
  void wait_for_answer() {
    const size_t before = answers_;
    for (int i = 0; i < 10 && answers_ == before && !gone_; ++i) step(milliseconds(1));
  }

  // Begins TLS. From then on, the door sends for this client.
  void go_through_door() {
    if (stream_) return;
    send_raw("\26");
    stream_ = world_.stream();
  }
  // Sends the door's report about the TLS handshake.
  void report(const server::DoorReport& report) {
    if (!stream_) return;
    challenge_.reset();
    exported_ = report.proof;
    send({reinterpret_cast<const char*>(&report), sizeof report});
  }
  void report(uint8_t value) {
    server::DoorReport one;
    one.proof.fill(value);
    report(one);
  }
  bool is_behind_door() const { return static_cast<bool>(stream_); }
  int stream() const { return stream_.get(); }
  // No value before the daemon's challenge.
  std::optional<tls::Key> binding() const {
    if (!challenge_) return {};
    return tls::binding_of(challenge_->nonce, exported_);
  }
  const std::optional<wire::Challenge>& challenge() const { return challenge_; }
  int fd() const { return socket_.get(); }
  // Call it when the client has identified itself: from now on the daemon may send any message.
  void is_known() { is_known_ = true; }
  bool was_told(wire::MessageType type) const { return last_ == type; }
  bool is_gone() const { return gone_; }
  const std::vector<std::byte>& told() const { return body_; }

 private:
  void step(milliseconds longest_wait = milliseconds(0)) {
    world_.turn(longest_wait);
    char some[4096];
    for (;;) {
      const int from = stream_ ? stream_.get() : socket_.get();
      const ssize_t got = ::recv(from, some, sizeof some, MSG_DONTWAIT);
      gone_ = gone_ || got == 0 || (got < 0 && errno != EAGAIN);
      if (got <= 0) break;
      received_.append(some, static_cast<size_t>(got));
    }
    while (take_message()) {
    }
  }

  bool take_message() {
    wire::MessageHeader header;
    if (received_.size() < sizeof header) return false;
    std::memcpy(&header, received_.data(), sizeof header);
    must(wire::check_header(header).ok());
    if (received_.size() < sizeof header + header.body_bytes) return false;
    const auto* body = reinterpret_cast<const std::byte*>(received_.data()) + sizeof header;
    body_.assign(body, body + header.body_bytes);
    last_ = header.type;
    received_.erase(0, sizeof header + header.body_bytes);
    ++answers_;
    if (stream_ && last_ == wire::MessageType::kChallenge) {
      challenge_ = *wire::decode<wire::Challenge>(body_);
      return true;
    }
    must(is_known_ || last_ == wire::MessageType::kRefusal);
    return true;
  }

  DoorWorld& world_;
  UniqueFd socket_;
  UniqueFd stream_;  // the door's stream to the daemon; empty: directly connected
  tls::Key exported_{};
  std::optional<wire::Challenge> challenge_;
  bool is_known_;
  bool gone_ = false;
  std::string received_;
  size_t answers_ = 0;
  std::optional<wire::MessageType> last_;
  std::vector<std::byte> body_;  // of the last message
};

}  // namespace rcuda::fuzz
