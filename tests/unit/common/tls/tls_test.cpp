// Connections without proof and with a key, over socket pairs.
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <openssl/ssl3.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "common/base/socket_io.h"
#include "common/tls/handshake.h"
#include "common/tls/keyed.h"

namespace rcuda::tls {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Key kKey{7, 7, 7};

Clock::time_point soon() { return Clock::now() + std::chrono::seconds(60); }

struct Ends {
  UniqueFd client, server;
};

Ends make_ends() {
  int fds[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

struct Encrypted {
  Result<Socket> client = Status(Code::kInternal, "not made");
  Result<Socket> server = Status(Code::kInternal, "not made");
};

Encrypted encrypt_both(Ends ends, const Key& client, const Key& server) {
  Encrypted made;
  std::thread other(
      [&] { made.server = encrypt(std::move(ends.server), server, Role::kServer, soon()); });
  made.client = encrypt(std::move(ends.client), client, Role::kClient, soon());
  other.join();
  return made;
}

std::vector<std::byte> random_bytes(size_t count) {
  std::mt19937_64 random(count);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(KeyedTest, BothDirectionsAtOnce) {
  Encrypted ends = encrypt_both(make_ends(), kKey, kKey);
  ASSERT_TRUE(ends.client.ok()) << ends.client.status().message();
  ASSERT_TRUE(ends.server.ok()) << ends.server.status().message();
  const std::vector<std::byte> data = random_bytes(3'000'017);
  const auto sends = [&](const Socket& socket) {
    EXPECT_TRUE(send_all(socket, data, soon()).ok());
  };
  const auto receives = [&](const Socket& socket) {
    std::vector<std::byte> got(data.size());
    EXPECT_TRUE(recv_all(socket, got, soon()).ok());
    EXPECT_EQ(std::memcmp(got.data(), data.data(), data.size()), 0);
  };
  std::vector<std::thread> threads;
  for (const Socket* socket : {&*ends.client, &*ends.server}) {
    threads.emplace_back([&, socket] { sends(*socket); });
    threads.emplace_back([&, socket] { receives(*socket); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(KeyedTest, PiecesAreOneRecordAndFlagsMeanWhatTheyMeanOnSockets) {
  Encrypted ends = encrypt_both(make_ends(), kKey, kKey);
  ASSERT_TRUE(ends.client.ok() && ends.server.ok());
  char text[16] = {};
  EXPECT_EQ(ends.server->recv(text, sizeof text, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  char one[] = "one, ", two[] = "two";
  const iovec pieces[] = {{one, 5}, {two, 3}};
  EXPECT_EQ(ends.client->send(pieces, 0), 8);
  EXPECT_EQ(ends.server->recv(text, 3, MSG_PEEK), 3);
  EXPECT_EQ(ends.server->recv(text, 8, MSG_WAITALL), 8);
  EXPECT_STREQ(text, "one, two");
  const timeval limit{0, 20'000};
  ASSERT_EQ(::setsockopt(ends.server->fd(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  EXPECT_EQ(ends.server->recv(text, 1, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  *ends.client = Socket();
  EXPECT_EQ(ends.server->recv(text, 1, 0), 0);
  EXPECT_LT(ends.server->send("x", 1, 0), 0);  // and raises no SIGPIPE
}

TEST(KeyedTest, AFullSocketTakesTheRestLater) {
  Encrypted ends = encrypt_both(make_ends(), kKey, kKey);
  ASSERT_TRUE(ends.client.ok() && ends.server.ok());
  const std::vector<std::byte> data = random_bytes(8 << 20);
  std::thread reader([&] {
    std::vector<std::byte> got(data.size());
    EXPECT_TRUE(recv_all(*ends.server, got, soon()).ok());
    EXPECT_EQ(std::memcmp(got.data(), data.data(), data.size()), 0);
  });
  size_t sent = 0;
  int full = 0;
  while (sent < data.size()) {
    const ssize_t some = ends.client->send(data.data() + sent, data.size() - sent, MSG_DONTWAIT);
    if (some > 0) {
      sent += static_cast<size_t>(some);
      continue;
    }
    ASSERT_EQ(errno, EAGAIN);
    ++full;
    pollfd item{ends.client->fd(), POLLOUT, 0};
    ::poll(&item, 1, 1000);
  }
  reader.join();
  EXPECT_GT(full, 0);
}

TEST(KeyedTest, AnotherKeyIsRefusedOnBothSides) {
  Key other = kKey;
  other[31] ^= 1;
  const Encrypted ends = encrypt_both(make_ends(), kKey, other);
  EXPECT_FALSE(ends.client.ok());
  EXPECT_FALSE(ends.server.ok());
}

TEST(KeyedTest, APeerThatSaysNothingIsGivenUpAndOneThatTalksPlainlyIsRefused) {
  {
    Ends ends = make_ends();
    const auto waiting = encrypt(std::move(ends.server), kKey, Role::kServer,
                                 Clock::now() + std::chrono::milliseconds(20));
    EXPECT_EQ(waiting.status().code(), Code::kTimeout);
  }
  for (const char* const text :
       {"CUDA in plain text, as an old client", "\x16\x03\x01\x00\x04junk"}) {
    Ends ends = make_ends();
    ASSERT_GT(::send(ends.client.get(), text, std::strlen(text) + 1, 0), 0);
    ends.client.reset();
    EXPECT_FALSE(encrypt(std::move(ends.server), kKey, Role::kServer, soon()).ok());
  }
}

// The bytes of a TLS connection pass through two sockets of the test, which may change a byte.
class Wire {
 public:
  Wire() : left_(make_ends()), right_(make_ends()) {}
  Ends ends() { return {std::move(left_.client), std::move(right_.server)}; }
  void start() {
    for (auto [from, to] : {std::pair(left_.server.get(), right_.client.get()),
                            std::pair(right_.client.get(), left_.server.get())}) {
      threads_.emplace_back([this, from = from, to = to] { forward(from, to); });
    }
  }
  void change_next() { changes_ = true; }
  ~Wire() {
    ::shutdown(left_.server.get(), SHUT_RDWR);
    ::shutdown(right_.client.get(), SHUT_RDWR);
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void forward(int from, int to) {
    char data[4096];
    ssize_t got;
    while ((got = ::recv(from, data, sizeof data, 0)) > 0) {
      if (changes_.exchange(false)) data[got - 1] ^= 1;
      (void)::send(to, data, static_cast<size_t>(got), MSG_NOSIGNAL);
    }
    ::shutdown(to, SHUT_WR);
  }

  Ends left_, right_;
  std::vector<std::thread> threads_;
  std::atomic<bool> changes_{false};
};

TEST(KeyedTest, AChangedBitEndsTheConnection) {
  Wire wire;
  wire.start();
  Encrypted ends = encrypt_both(wire.ends(), kKey, kKey);
  ASSERT_TRUE(ends.client.ok() && ends.server.ok());
  char text[8] = {};
  ASSERT_EQ(ends.client->send("good", 5, 0), 5);
  ASSERT_EQ(ends.server->recv(text, 5, MSG_WAITALL), 5);
  wire.change_next();
  ASSERT_EQ(ends.client->send("evil", 5, 0), 5);
  EXPECT_EQ(ends.server->recv(text, 5, MSG_WAITALL), -1);
  EXPECT_EQ(errno, EPROTO);
}

// The call that returns the last bytes before a broken record does not return the error. Later
// calls return the error or the end of the stream.
TEST(KeyedTest, TheErrorAfterGoodBytesIsReturned) {
  Wire wire;
  wire.start();
  Encrypted ends = encrypt_both(wire.ends(), kKey, kKey);
  ASSERT_TRUE(ends.client.ok() && ends.server.ok());
  const auto arrived = [&] {
    int bytes = 0;
    EXPECT_EQ(::ioctl(ends.server->fd(), FIONREAD, &bytes), 0);
    return bytes;
  };
  ASSERT_EQ(ends.client->send("good", 5, 0), 5);
  while (arrived() == 0) std::this_thread::yield();
  const int record = arrived();
  wire.change_next();
  ASSERT_EQ(ends.client->send("evil", 5, 0), 5);
  while (arrived() < 2 * record) std::this_thread::yield();
  char text[16] = {};
  EXPECT_EQ(ends.server->recv(text, sizeof text, MSG_DONTWAIT), 5);
  for (int i = 0; i < 3; ++i) {
    const ssize_t got = ends.server->recv(text, sizeof text, MSG_DONTWAIT);
    EXPECT_LE(got, 0);
    if (got < 0) EXPECT_EQ(errno, EPROTO);
  }
}

TEST(KeyedTest, DerivedKeysDifferByLabelAndKey) {
  EXPECT_EQ(derive(kKey, "a"), derive(kKey, "a"));
  EXPECT_NE(derive(kKey, "a"), derive(kKey, "b"));
  EXPECT_NE(derive(kKey, "a"), derive(Key{}, "a"));
}

class HandshakeTest : public testing::Test {
 protected:
  struct Met {
    Result<std::unique_ptr<Connection>> client = Status(Code::kInternal, "not made");
    std::unique_ptr<Connection> server;
    Status server_status;
  };

  Met meet() {
    ends_ = make_ends();
    Met met;
    std::thread other([&] {
      auto accepted = acceptor_->accept(ends_.server.get());
      ASSERT_TRUE(accepted.ok());
      met.server = std::move(*accepted);
      met.server_status = shake_hands(*met.server, ends_.server.get(), soon());
    });
    met.client = connect(ends_.client.get(), soon());
    if (!met.client.ok()) ::shutdown(ends_.client.get(), SHUT_RDWR);
    other.join();
    return met;
  }

  const Result<Acceptor> acceptor_ = Acceptor::create();
  Ends ends_;
};

TEST_F(HandshakeTest, BothEndsDeriveTheSameKeys) {
  const Met met = meet(), again = meet();
  ASSERT_TRUE(met.client.ok()) << met.client.status().message();
  ASSERT_TRUE(met.server_status.ok());
  for (const char* const label : {kSessionLabel, kProofLabel}) {
    EXPECT_EQ((*met.client)->exported(label), met.server->exported(label));
    EXPECT_NE(met.server->exported(label), again.server->exported(label));
  }
  EXPECT_NE(met.server->exported(kProofLabel), met.server->exported(kSessionLabel));
}

// Counts the KeyUpdate messages that a connection reads.
void count_key_updates(int writes, int, int content, const void* data, size_t bytes, SSL*,
                       void* count) {
  const auto* const message = static_cast<const unsigned char*>(data);
  if (!writes && content == SSL3_RT_HANDSHAKE && bytes > 0 && message[0] == SSL3_MT_KEY_UPDATE) {
    ++*static_cast<int*>(count);
  }
}

TEST_F(HandshakeTest, KeysAreRenewed) {
  Met met = meet();
  ASSERT_TRUE(met.client.ok() && met.server_status.ok());
  int renewed[2] = {};
  constexpr int kRecordsPerKey = 3, kRecords = 100;
  const std::vector<std::byte> data = random_bytes(4'000'003);
  Connection* const connections[] = {met.client->get(), met.server.get()};
  for (int end = 0; end < 2; ++end) {
    connections[end]->renew_key_after(kRecordsPerKey);
    SSL_set_msg_callback(connections[end]->ssl(), count_key_updates);
    SSL_set_msg_callback_arg(connections[end]->ssl(), &renewed[end]);
  }
  const Socket sockets[] = {{std::move(ends_.client), std::move(*met.client)},
                            {std::move(ends_.server), std::move(met.server)}};
  for (int i = 0; i < kRecords; ++i) {
    for (int from = 0; from < 2; ++from) {
      char text[] = "a record", got[sizeof text] = {};
      ASSERT_EQ(sockets[from].send(text, sizeof text, 0), ssize_t{sizeof text});
      ASSERT_EQ(sockets[1 - from].recv(got, sizeof got, MSG_WAITALL), ssize_t{sizeof got});
      EXPECT_STREQ(got, text);
    }
  }
  EXPECT_EQ(renewed[0], (kRecords - 1) / kRecordsPerKey);
  EXPECT_EQ(renewed[1], (kRecords - 1) / kRecordsPerKey);
  // While both directions are full there are fewer updates: an update is sent only if it fits into
  // the socket's buffer.
  std::vector<std::thread> threads;
  for (const Socket& socket : sockets) {
    threads.emplace_back([&] { EXPECT_TRUE(send_all(socket, data, soon()).ok()); });
    threads.emplace_back([&] {
      std::vector<std::byte> got(data.size());
      EXPECT_TRUE(recv_all(socket, got, soon()).ok());
      EXPECT_EQ(got, data);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace rcuda::tls
