// The processor time of a short message over TLS, without any waiting. Two ends in one thread send
// each other a message of a command's size: plainly over loopback, over loopback as a
// tls::Connection, and through OpenSSL alone, which encrypts and decrypts in memory.
//
//   tls_records [ROUND_TRIPS]        default: 100000
//
// Prints microseconds for a round trip, which is two messages: with TLS, two records are made and
// two are opened.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "common/base/socket.h"
#include "common/tls/keyed.h"

namespace {

using namespace rcuda;

constexpr size_t kMessageBytes = 112;
constexpr size_t kReceiveBytes = 128 << 10;

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

// Returns the two ends of a TCP connection over loopback.
std::pair<UniqueFd, UniqueFd> make_connection() {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.get(), generic, bytes) != 0 || ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), generic, &bytes) != 0) {
    fail("a socket");
  }
  UniqueFd one(::socket(AF_INET, SOCK_STREAM, 0));
  if (::connect(one.get(), generic, bytes) != 0) fail("connect");
  UniqueFd other(::accept(listener.get(), nullptr, nullptr));
  for (const UniqueFd* end : {&one, &other}) {
    const int on = 1;
    (void)::setsockopt(end->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  return {std::move(one), std::move(other)};
}

double processor_us() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  const auto us = [](const timeval& time) {
    return 1e6 * static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec);
  };
  return us(usage.ru_utime) + us(usage.ru_stime);
}

// `pass(from, to)` sends one message from one end to the other, and receives it there.
void measure(const char* what, int count, const std::function<void(int, int)>& pass) {
  const auto rounds = [&](int number) {
    for (int i = 0; i < number; ++i) {
      pass(0, 1);
      pass(1, 0);
    }
  };
  rounds(count / 10 + 1);
  const double begin = processor_us();
  rounds(count);
  std::printf("  %-40s %6.2f us\n", what, (processor_us() - begin) / count);
}

void carry(const Socket& from, const Socket& to) {
  static std::vector<std::byte> message(kMessageBytes), received(kReceiveBytes);
  if (from.send(message.data(), message.size(), MSG_DONTWAIT) !=
      static_cast<ssize_t>(kMessageBytes)) {
    fail("send");
  }
  while (to.recv(received.data(), received.size(), MSG_DONTWAIT) < 0) {
    if (errno != EAGAIN) fail("recv");
  }
}

std::pair<Socket, Socket> encrypt(std::pair<UniqueFd, UniqueFd> ends) {
  const tls::Key key{1, 2, 3};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  Result<Socket> one(Status(Code::kInternal, ""));
  std::thread other_thread(
      [&] { one = tls::encrypt(std::move(ends.first), key, tls::Role::kClient, deadline); });
  Result<Socket> other = tls::encrypt(std::move(ends.second), key, tls::Role::kServer, deadline);
  other_thread.join();
  if (!one.ok() || !other.ok()) fail("the TLS handshake");
  return {std::move(*one), std::move(*other)};
}

// OpenSSL's two ends, connected in memory. They have no certificates, but a cipher of the same
// cost.
class InMemory {
 public:
  InMemory() : context_(SSL_CTX_new(TLS_method())) {
    SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION);
    SSL_CTX_set_ciphersuites(context_, "TLS_AES_128_GCM_SHA256");
    SSL_CTX_set_psk_use_session_callback(context_, [](SSL* ssl, const EVP_MD*, const unsigned char** id,
                                                      size_t* bytes, SSL_SESSION** session) {
      *id = reinterpret_cast<const unsigned char*>("key");
      *bytes = 3;
      *session = session_of(ssl);
      return 1;
    });
    SSL_CTX_set_psk_find_session_callback(
        context_, [](SSL* ssl, const unsigned char*, size_t, SSL_SESSION** session) {
          *session = session_of(ssl);
          return 1;
        });
    for (SSL*& end : ends_) end = SSL_new(context_);
    BIO *one = nullptr, *other = nullptr;
    BIO_new_bio_pair(&one, kReceiveBytes, &other, kReceiveBytes);
    SSL_set_bio(ends_[0], one, one);
    SSL_set_bio(ends_[1], other, other);
    SSL_set_connect_state(ends_[0]);
    SSL_set_accept_state(ends_[1]);
    for (int i = 0; i < 10; ++i) (void)SSL_do_handshake(ends_[i % 2]);
    if (!SSL_is_init_finished(ends_[0]) || !SSL_is_init_finished(ends_[1])) {
      fail("OpenSSL's handshake");
    }
  }
  ~InMemory() {
    for (SSL* const end : ends_) SSL_free(end);
    SSL_CTX_free(context_);
  }
  void pass(int from, int to) {
    char message[kMessageBytes] = {};
    if (SSL_write(ends_[from], message, sizeof message) <= 0 ||
        SSL_read(ends_[to], message, sizeof message) <= 0) {
      fail("OpenSSL");
    }
  }

 private:
  static SSL_SESSION* session_of(SSL* ssl) {
    const unsigned char cipher[] = {0x13, 0x01}, key[32] = {1};
    SSL_SESSION* const session = SSL_SESSION_new();
    SSL_SESSION_set1_master_key(session, key, sizeof key);
    SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, cipher));
    SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION);
    return session;
  }
  SSL_CTX* const context_;
  SSL* ends_[2] = {};
};

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 100'000;
  std::printf("processor time of a round trip of two messages of %zu bytes (%s)\n", kMessageBytes,
              OpenSSL_version(OPENSSL_VERSION));
  auto [one, other] = make_connection();
  const Socket plain[2] = {std::move(one), std::move(other)};
  measure("plain", count, [&](int from, int to) { carry(plain[from], plain[to]); });
  auto [client, server] = encrypt(make_connection());
  const Socket encrypted[2] = {std::move(client), std::move(server)};
  measure("TLS", count, [&](int from, int to) { carry(encrypted[from], encrypted[to]); });
  InMemory memory;
  measure("OpenSSL alone, in memory", count, [&](int from, int to) { memory.pass(from, to); });
}
