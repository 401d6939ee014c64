// A daemon and its clients in one process and one thread, for the door fuzzers: after each thing
// that a client does, the daemon takes a turn of its loop.
//
// DoorWorld has the daemon, which has a certificate, a token, and a MUNGE that accepts the fuzzer's
// credentials; it has no workers, so a session waits. DoorClient is one connection to it, which may
// speak TLS, and which knows what it may be told: a client that has not identified itself gets
// nothing but a Refusal.
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
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/unique_fd.h"
#include "common/identity/certificate.h"
#include "common/messages/message_io.h"
#include "common/reach/same_host.h"
#include "common/tls/openssl.h"
#include "common/wire/protocol.h"
#include "server/daemon/daemon.h"
#include "server/identity/token_store.h"
#include "tests/fuzz/accepted.h"
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
    set(settings_.users, "root");  // whom the token below may name
    set(settings_.certificate, folder_.file("server.pem"));
    set(settings_.tokens, folder_.file("tokens"));
    settings_.worker_binary = "/bin/false";
    const auto certificate =
        identity::load_or_make_certificate(settings_.certificate.get(), "server");
    must(certificate.ok());
    server::NewToken wanted;
    wanted.user = std::to_string(::geteuid());
    wanted.fingerprint = *identity::fingerprint_of(certificate->x509.get());
    const auto token = server::create_token(settings_.tokens.get(), wanted, server::Seconds());
    must(token.ok());
    token_ = *token;
  }

  // Makes a new daemon. Comes first.
  void start() {
    daemon_.reset();
    int ends[2];
    must(::pipe2(ends, O_CLOEXEC) == 0);
    const UniqueFd ready(ends[0]);
    const UniqueFd port_to(ends[1]);
    daemon_ = std::make_unique<server::Daemon>(settings_, -1, port_to.get());
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
      // It ends by a reset, so that no port of this machine is kept.
      const linger at_once{1, 0};
      ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    }
    turn();
    return socket;
  }

  const identity::Token& token() const { return token_; }

 private:
  test::TempFolder folder_;
  server::Settings settings_;
  identity::Token token_;
  std::unique_ptr<server::Daemon> daemon_;
  uint16_t port_ = 0;
};

// A client's half of TLS whose records are in memory, so that they can be altered.
class TlsHalf {
 public:
  TlsHalf() {
    static const auto& context = *new auto(tls::make_context(TLS_client_method()));
    ssl_.reset(SSL_new(context->get()));
    in_ = BIO_new(BIO_s_mem());
    out_ = BIO_new(BIO_s_mem());
    must(ssl_ && in_ && out_);
    SSL_set_bio(ssl_.get(), in_, out_);
    SSL_set_connect_state(ssl_.get());
  }

  // What this side sends next.
  std::string flight() {
    if (!SSL_is_init_finished(ssl_.get())) (void)SSL_do_handshake(ssl_.get());
    return take();
  }
  std::string record(const std::string& text) {
    if (is_shaken() && !text.empty()) {
      (void)SSL_write(ssl_.get(), text.data(), static_cast<int>(text.size()));
    }
    return take();
  }
  std::string key_update(bool requested) {
    if (is_shaken()) {
      (void)SSL_key_update(ssl_.get(),
                           requested ? SSL_KEY_UPDATE_REQUESTED : SSL_KEY_UPDATE_NOT_REQUESTED);
      (void)SSL_do_handshake(ssl_.get());
    }
    return take();
  }
  std::string farewell() {
    if (is_shaken()) (void)SSL_shutdown(ssl_.get());
    return take();
  }
  // Takes bytes of the server and returns what they say.
  std::string read(const std::string& bytes) {
    BIO_write(in_, bytes.data(), static_cast<int>(bytes.size()));
    std::string text;
    char some[4096];
    for (int got; is_shaken() && (got = SSL_read(ssl_.get(), some, sizeof some)) > 0;) {
      text.append(some, static_cast<size_t>(got));
    }
    ERR_clear_error();
    return text;
  }
  bool is_shaken() const { return SSL_is_init_finished(ssl_.get()); }
  tls::Key exported(const char* label) const {
    tls::Key key{};
    must(SSL_export_keying_material(ssl_.get(), key.data(), key.size(), label, std::strlen(label),
                                    nullptr, 0, 0) == 1);
    return key;
  }

 private:
  std::string take() {
    ERR_clear_error();
    std::string bytes(BIO_ctrl_pending(out_), '\0');
    if (!bytes.empty()) BIO_read(out_, bytes.data(), static_cast<int>(bytes.size()));
    return bytes;
  }

  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  std::unique_ptr<SSL, Free> ssl_;
  BIO* in_ = nullptr;  // belong to ssl_
  BIO* out_ = nullptr;
};

class DoorClient {
 public:
  DoorClient(DoorWorld& world, bool local)
      : world_(world), socket_(world.connect(local)), is_known_(local) {}

  // Bytes as they are, whatever is on the connection.
  void send_raw(const std::string& bytes) {
    if (!bytes.empty()) {
      (void)::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    step();
  }
  // Bytes of the protocol, inside of TLS if that has begun.
  void send(const std::string& bytes) { send_raw(tls_ ? tls_->record(bytes) : bytes); }
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
  // What the daemon finds out on other threads.
  void wait_for_answer() {
    const size_t before = answers_;
    for (int i = 0; i < 10 && answers_ == before && !gone_; ++i) step(milliseconds(1));
  }

  TlsHalf& tls() {
    if (!tls_) tls_.emplace();
    return *tls_;
  }
  bool has_tls() const { return tls_.has_value(); }
  bool is_shaken() const { return tls_ && tls_->is_shaken(); }
  int fd() const { return socket_.get(); }
  // From now on the daemon may serve it.
  void is_known() { is_known_ = true; }
  bool was_told(wire::MessageType type) const { return last_ == type; }
  const std::vector<std::byte>& told() const { return body_; }

 private:
  void step(milliseconds longest_wait = milliseconds(0)) {
    world_.turn(longest_wait);
    char some[4096];
    for (;;) {
      const ssize_t got = ::recv(socket_.get(), some, sizeof some, MSG_DONTWAIT);
      gone_ = gone_ || got == 0 || (got < 0 && errno != EAGAIN);
      if (got <= 0) break;
      const std::string bytes(some, static_cast<size_t>(got));
      received_ += tls_ ? tls_->read(bytes) : bytes;
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
    must(is_known_ || last_ == wire::MessageType::kRefusal);
    return true;
  }

  DoorWorld& world_;
  UniqueFd socket_;
  std::optional<TlsHalf> tls_;
  bool is_known_;
  bool gone_ = false;
  std::string received_;
  size_t answers_ = 0;
  std::optional<wire::MessageType> last_;
  std::vector<std::byte> body_;  // of the last message
};

}  // namespace rcuda::fuzz
