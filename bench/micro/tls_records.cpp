// The cost of a short message over TLS. Two ends send each other a message of a command's size.
//
//   tls_records [ROUND_TRIPS]        default: 100000
//
// Prints microseconds for a round trip, which is two messages: with TLS, two records are made and
// two are opened. First the processor time without any waiting, with both ends in one thread:
// plainly over loopback, over loopback as a tls::Connection, and through OpenSSL alone, which
// encrypts and decrypts in memory. Then the time of round trips as a client and a worker make them:
// each end has a thread that sends and a thread that receives, and both poll. This needs four
// cores. The target here is the time of OpenSSL on the same sockets with a lock for each end.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "common/base/cpu_pause.h"
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

SSL_SESSION* session_of(SSL* ssl) {
  const unsigned char cipher[] = {0x13, 0x01}, key[32] = {1};
  SSL_SESSION* const session = SSL_SESSION_new();
  SSL_SESSION_set1_master_key(session, key, sizeof key);
  SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, cipher));
  SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION);
  return session;
}

// For ends without certificates. The cipher costs as much as that of a tls::Connection.
SSL_CTX* make_context() {
  SSL_CTX* const context = SSL_CTX_new(TLS_method());
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_num_tickets(context, 0);  // a ticket would wake OpenSslEnd::receive() without data
  SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256");
  SSL_CTX_set_psk_use_session_callback(
      context,
      [](SSL* ssl, const EVP_MD*, const unsigned char** id, size_t* bytes, SSL_SESSION** session) {
        *id = reinterpret_cast<const unsigned char*>("key");
        *bytes = 3;
        *session = session_of(ssl);
        return 1;
      });
  SSL_CTX_set_psk_find_session_callback(
      context, [](SSL* ssl, const unsigned char*, size_t, SSL_SESSION** session) {
        *session = session_of(ssl);
        return 1;
      });
  return context;
}

// OpenSSL's two ends, connected in memory.
class InMemory {
 public:
  explicit InMemory(SSL_CTX* context) {
    for (SSL*& end : ends_) end = SSL_new(context);
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
  }
  void pass(int from, int to) {
    char message[kMessageBytes] = {};
    if (SSL_write(ends_[from], message, sizeof message) <= 0 ||
        SSL_read(ends_[to], message, sizeof message) <= 0) {
      fail("OpenSSL");
    }
  }

 private:
  SSL* ends_[2] = {};
};

// A counter that one thread raises and another polls.
struct alignas(128) Signal {
  std::atomic<int> value{0};
  void wait_for(int least) const {
    while (value.load(std::memory_order_acquire) < least) cpu_pause();
  }
};

// One end of a connection. send() and receive() are for one thread each.
class End {
 public:
  virtual ~End() = default;
  virtual void send() = 0;
  virtual void receive() = 0;
};

class SocketEnd : public End {
 public:
  explicit SocketEnd(Socket socket) : socket_(std::move(socket)) {}
  void send() override {
    if (socket_.send(message_, sizeof message_, MSG_DONTWAIT) < 0) fail("send");
  }
  void receive() override {
    while (socket_.recv(received_.data(), received_.size(), MSG_DONTWAIT) < 0) {
      if (errno != EAGAIN) fail("recv");
    }
  }

 private:
  const Socket socket_;
  const char message_[kMessageBytes] = {};
  std::vector<std::byte> received_ = std::vector<std::byte>(kReceiveBytes);
};

// OpenSSL with only the lock that it needs. The receiving thread polls without the lock.
class OpenSslEnd : public End {
 public:
  OpenSslEnd(SSL* ssl, UniqueFd socket) : ssl_(ssl), socket_(std::move(socket)) {
    SSL_set_fd(ssl_, socket_.get());
  }
  ~OpenSslEnd() override { SSL_free(ssl_); }
  SSL* ssl() const { return ssl_; }
  void send() override {
    const char message[kMessageBytes] = {};
    const std::lock_guard lock(mutex_);
    if (SSL_write(ssl_, message, sizeof message) <= 0) fail("OpenSSL");
  }
  void receive() override {
    char message[kMessageBytes];
    while (::recv(socket_.get(), message, 1, MSG_PEEK | MSG_DONTWAIT) < 0) {
      if (errno != EAGAIN) fail("recv");
    }
    const std::lock_guard lock(mutex_);
    if (SSL_read(ssl_, message, sizeof message) <= 0) fail("OpenSSL");
  }

 private:
  SSL* const ssl_;
  const UniqueFd socket_;
  std::mutex mutex_;
};

// `one` sends, and `other` answers each message.
void measure_threads(const char* what, int count, End& one, End& other) {
  Signal sent, arrived, answered;
  std::thread receives([&] {
    for (int i = 1; i <= count; ++i) {
      other.receive();
      arrived.value.store(i, std::memory_order_release);
    }
  });
  std::thread answers([&] {
    for (int i = 1; i <= count; ++i) {
      arrived.wait_for(i);
      other.send();
    }
  });
  std::thread takes([&] {
    for (int i = 1; i <= count; ++i) {
      one.receive();
      answered.value.store(i, std::memory_order_release);
    }
  });
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 1; i <= count; ++i) {
    one.send();
    answered.wait_for(i);
  }
  const std::chrono::duration<double, std::micro> elapsed =
      std::chrono::steady_clock::now() - begin;
  for (std::thread* const thread : {&receives, &answers, &takes}) thread->join();
  std::printf("  %-40s %6.2f us\n", what, elapsed.count() / count);
}

void measure_with_threads(SSL_CTX* context, int count) {
  {
    auto [one, other] = make_connection();
    SocketEnd first(std::move(one)), second(std::move(other));
    measure_threads("plain", count, first, second);
  }
  {
    auto [one, other] = encrypt(make_connection());
    SocketEnd first(std::move(one)), second(std::move(other));
    measure_threads("TLS", count, first, second);
  }
  auto [one, other] = make_connection();
  OpenSslEnd first(SSL_new(context), std::move(one)), second(SSL_new(context), std::move(other));
  SSL_set_accept_state(second.ssl());
  std::thread accepts([&] {
    if (SSL_do_handshake(second.ssl()) != 1) fail("OpenSSL's handshake");
  });
  if (SSL_connect(first.ssl()) != 1) fail("OpenSSL's handshake");
  accepts.join();
  measure_threads("OpenSSL and a lock", count, first, second);
}

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
  SSL_CTX* const context = make_context();
  InMemory memory(context);
  measure("OpenSSL alone, in memory", count, [&](int from, int to) { memory.pass(from, to); });
  if (std::thread::hardware_concurrency() < 4) return 0;
  std::printf("round trip with a sending and a receiving thread at each end\n");
  for (int round = 0; round < 3; ++round) measure_with_threads(context, count);
}
