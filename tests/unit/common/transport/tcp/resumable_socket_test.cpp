#include "common/transport/tcp/resumable_socket.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/socket_io.h"
#include "common/transport/tcp/reconnects.h"
#include "common/transport/tcp/tcp_messages.h"
#include "tests/support/crossing.h"
#include "tests/support/cut_socket.h"
#include "tests/support/tcp_sockets.h"

namespace rcuda::transport {
namespace {

using test::Crossing;
using test::Cut;
using test::CutSocket;

constexpr uint32_t kStream = 0;
const auto kForever = Deadline::max();

std::byte pattern(uint64_t at) { return static_cast<std::byte>(at * 131 + (at >> 8)); }

// One stream between two Reconnects, in this process.
class Ends {
 public:
  explicit Ends(Crossing& crossing, Crossing::Pair first = Crossing::make_pair())
      : client_(crossing.client(), [](uint32_t, int) {}),
        server_(crossing.server(), [](uint32_t, int) {}) {
    client.emplace(*client_.protect(std::move(first.first), kStream));
    server.emplace(*server_.protect(std::move(first.second), kStream));
    Crossing::Pair acknowledgements = Crossing::make_pair();
    client_.keep(std::move(acknowledgements.first));
    server_.keep(std::move(acknowledgements.second));
    EXPECT_TRUE(client_.start().ok());
    EXPECT_TRUE(server_.start().ok());
  }
  ~Ends() {
    server_.stop();
    client_.stop();
  }

 private:
  Reconnects client_, server_;

 public:
  std::optional<Socket> client, server;
};

// Sends the pattern from `begin` on, in pieces of at most `most` bytes.
void send_pattern(const Socket& socket, uint64_t begin, uint64_t bytes, size_t most) {
  std::vector<std::byte> piece;
  for (uint64_t at = begin; at != begin + bytes;) {
    piece.resize(std::min<uint64_t>(most, begin + bytes - at));
    for (size_t i = 0; i < piece.size(); ++i) piece[i] = pattern(at + i);
    ASSERT_TRUE(send_all(socket, piece, kForever).ok()) << at;
    at += piece.size();
  }
}

void expect_pattern(const Socket& socket, uint64_t begin, uint64_t bytes, size_t most) {
  std::vector<std::byte> piece;
  for (uint64_t at = begin; at != begin + bytes;) {
    piece.resize(std::min<uint64_t>(most, begin + bytes - at));
    ASSERT_TRUE(recv_all(socket, piece, kForever).ok()) << at;
    for (size_t i = 0; i < piece.size(); ++i) {
      ASSERT_EQ(piece[i], pattern(at + i)) << "byte " << at + i;
    }
    at += piece.size();
  }
}

// Requests and answers in turn, as between a client and its worker.
void converse(Ends& ends) {
  constexpr uint64_t kQuestion = 7, kAnswer = 11, kRounds = 2;
  std::thread worker([&] {
    for (uint64_t round = 0; round < kRounds; ++round) {
      expect_pattern(*ends.server, round * kQuestion, kQuestion, 5);
      send_pattern(*ends.server, round * kAnswer, kAnswer, 6);
    }
  });
  for (uint64_t round = 0; round < kRounds; ++round) {
    send_pattern(*ends.client, round * kQuestion, kQuestion, 3);
    expect_pattern(*ends.client, round * kAnswer, kAnswer, 8);
  }
  worker.join();
}

class CutAtEachByte : public ::testing::TestWithParam<Cut> {};

// The first and the second connection are lost after the same number of bytes. The number takes
// each value up to the end of the exchange, so the loss also comes within the messages by which
// both sides resume.
TEST_P(CutAtEachByte, NothingIsMissingAndNothingComesTwice) {
  constexpr uint64_t kMost = 2 * (7 + 11) + 2;
  for (uint64_t bytes = 0; bytes <= kMost; ++bytes) {
    SCOPED_TRACE(bytes);
    Crossing crossing(std::chrono::minutes(1));
    std::atomic<int> number{0};
    crossing.between = [&](int, Crossing::Pair pair) -> Result<Crossing::Pair> {
      if (number++ == 0) {
        pair.first = CutSocket::after(bytes, GetParam(), std::move(pair.first));
      }
      return pair;
    };
    Crossing::Pair first = Crossing::make_pair();
    first.first = CutSocket::after(bytes, GetParam(), std::move(first.first));
    Ends ends(crossing, std::move(first));
    converse(ends);
    if (HasFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(Ways, CutAtEachByte,
                         ::testing::Values(Cut::kReset, Cut::kClosed, Cut::kHalfClosed));

// Both directions at once, with many more bytes than a side retains.
TEST(ResumableSocketTest, MuchPassesOverManyConnections) {
  constexpr uint64_t kBytes = 8 * kRetainedBytes;
  Crossing crossing(std::chrono::minutes(1));
  std::mt19937 random(7);
  crossing.between = [&](int index, Crossing::Pair pair) -> Result<Crossing::Pair> {
    if (index != int{kStream} || crossing.made() > 12) return pair;
    pair.first =
        CutSocket::after(random() % (2 * kRetainedBytes), Cut::kReset, std::move(pair.first));
    return pair;
  };
  Crossing::Pair first = Crossing::make_pair();
  first.second = CutSocket::after(100'000, Cut::kClosed, std::move(first.second));
  Ends ends(crossing, std::move(first));
  std::thread threads[] = {
      std::thread([&] { send_pattern(*ends.client, 0, kBytes, 700'000); }),
      std::thread([&] { send_pattern(*ends.server, 5, kBytes, 300'000); }),
      std::thread([&] { expect_pattern(*ends.server, 0, kBytes, 200'000); }),
      std::thread([&] { expect_pattern(*ends.client, 5, kBytes, 900'000); }),
  };
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(crossing.made(), 3);
}

TEST(ResumableSocketTest, AcknowledgementsComeOverTheirNextSocketToo) {
  constexpr uint64_t kBytes = 4 * kRetainedBytes;
  Crossing crossing(std::chrono::minutes(1));
  Reconnects client(crossing.client(), [](uint32_t, int) {});
  Reconnects server(crossing.server(), [](uint32_t, int) {});
  Crossing::Pair pair = Crossing::make_pair();
  {
    const Socket from = *client.protect(std::move(pair.first), kStream);
    const Socket to = *server.protect(std::move(pair.second), kStream);
    Crossing::Pair acknowledgements = Crossing::make_pair();
    acknowledgements.first = CutSocket::after(24, Cut::kReset, std::move(acknowledgements.first));
    client.keep(std::move(acknowledgements.first));
    server.keep(std::move(acknowledgements.second));
    ASSERT_TRUE(client.start().ok());
    ASSERT_TRUE(server.start().ok());
    std::thread sender([&] { send_pattern(from, 0, kBytes, 100'000); });
    expect_pattern(to, 0, kBytes, 100'000);
    sender.join();
    EXPECT_EQ(crossing.made(), 1);
    server.stop();
    client.stop();
  }
}

// One end can no longer send acknowledgements, and the other end notices. Both ends get a new
// socket.
TEST(ResumableSocketTest, AHalfClosedSocketForAcknowledgementsIsReplaced) {
  Crossing crossing(std::chrono::minutes(1));
  Reconnects client(crossing.client(), [](uint32_t, int) {});
  Reconnects server(crossing.server(), [](uint32_t, int) {});
  Crossing::Pair acknowledgements = Crossing::make_pair();
  const UniqueFd half(::dup(acknowledgements.first.fd()));
  client.keep(std::move(acknowledgements.first));
  server.keep(std::move(acknowledgements.second));
  ASSERT_TRUE(client.start().ok());
  ASSERT_TRUE(server.start().ok());
  ::shutdown(half.get(), SHUT_WR);
  while (crossing.made() == 0) std::this_thread::yield();
  server.stop();
  client.stop();
}

// A stream whose peer is a raw socket of the test.
class RawPeerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Crossing::Pair pair = Crossing::make_pair();
    peer_ = std::move(pair.second);
    stream_ = *reconnects_.protect(std::move(pair.first), kStream);
    Crossing::Pair acknowledgements = Crossing::make_pair();
    acknowledgements_ = std::move(acknowledgements.second);
    reconnects_.keep(std::move(acknowledgements.first));
    ASSERT_TRUE(reconnects_.start().ok());
  }
  void TearDown() override {
    stream_.shutdown(SHUT_RDWR);
    reconnects_.stop();
  }
  // Replaces the connection. The peer reports that it has received this many bytes.
  void resume(uint64_t peer_received) {
    EXPECT_TRUE(stream_.lose("by the test"));
    Result<Socket> next = server_.next(int{kStream}, kForever);
    ASSERT_TRUE(next.ok());
    peer_ = std::move(*next);
    const ResumeHello own{kResumeMagic, peer_received};
    ASSERT_TRUE(send_all(peer_, bytes_of(own), kForever).ok());
    ResumeHello hello;
    ASSERT_TRUE(recv_all(peer_, writable_bytes_of(hello), kForever).ok());
    told_ = hello.received;
  }
  // Expects the end of the stream and returns its reason.
  std::string end() {
    std::byte byte;
    EXPECT_EQ(stream_.recv(&byte, 1, 0), 0);
    EXPECT_EQ(stream_.send(&byte, 1, 0), -1);
    EXPECT_EQ(errno, EPIPE);
    return stream_.why_ended();
  }

  Crossing crossing_{std::chrono::minutes(1)};
  Reconnecting server_ = crossing_.server();
  Reconnects reconnects_{crossing_.client(), [](uint32_t, int) {}};
  Socket stream_, peer_, acknowledgements_;
  uint64_t told_ = 0;
};

TEST_F(RawPeerTest, OnlyWhatThePeerLacksIsSentAgain) {
  send_pattern(stream_, 0, 100, 100);
  expect_pattern(peer_, 0, 60, 60);
  send_pattern(peer_, 0, 30, 30);
  expect_pattern(stream_, 0, 30, 30);
  resume(60);
  EXPECT_EQ(told_, 30u);
  send_pattern(stream_, 100, 20, 20);
  expect_pattern(peer_, 60, 60, 60);
  EXPECT_EQ(stream_.connections(), 2u);
}

TEST_F(RawPeerTest, TheNextConnectionInheritsTheLimitOfUnacknowledgedBytes) {
  crossing_.between = [](int, Crossing::Pair) -> Result<Crossing::Pair> {
    RCUDA_ASSIGN_OR_RETURN(auto pair, test::tcp_pair());
    return Crossing::Pair(std::move(pair.first), std::move(pair.second));
  };
  // A byte that arrives shows that the stream uses the next connection.
  const auto replace = [&](uint64_t received) {
    resume(0);
    send_pattern(peer_, received, 1, 1);
    expect_pattern(stream_, received, 1, 1);
  };
  replace(0);
  EXPECT_TRUE(stream_.set_option(IPPROTO_TCP, TCP_USER_TIMEOUT, 4321));
  replace(1);
  int limit = 0;
  socklen_t size = sizeof limit;
  EXPECT_TRUE(stream_.get_option(IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, &size));
  EXPECT_EQ(limit, 4321);
}

TEST_F(RawPeerTest, NoMoreIsSentThanIsRetained) {
  std::vector<std::byte> bytes(1 << 16);
  std::thread reader([&] {
    std::vector<std::byte> sink(1 << 16);
    uint64_t left = kRetainedBytes + 100;
    while (left != 0) {
      const ssize_t count = peer_.recv(sink.data(), std::min<uint64_t>(sink.size(), left), 0);
      if (count <= 0) return;
      left -= static_cast<uint64_t>(count);
    }
  });
  uint64_t sent = 0;
  while (sent < kRetainedBytes) {
    const ssize_t count = stream_.send(bytes.data(), bytes.size(), 0);
    ASSERT_GT(count, 0);
    sent += static_cast<uint64_t>(count);
  }
  EXPECT_EQ(sent, kRetainedBytes);
  EXPECT_EQ(stream_.send(bytes.data(), 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  const struct {
    uint32_t index, unused;
    uint64_t received;
  } acknowledgement{kStream, 0, 300'000};
  ASSERT_TRUE(send_all(acknowledgements_, bytes_of(acknowledgement), kForever).ok());
  EXPECT_EQ(stream_.send(bytes.data(), 100, 0), 100);
  reader.join();
}

// An acknowledgement also makes room if it arrives while send() still waits for the socket.
TEST_F(RawPeerTest, BytesMayBeAcknowledgedBeforeTheirSendReturns) {
  constexpr uint64_t kEarly = 3u << 20;
  const std::vector<std::byte> bytes(kRetainedBytes);
  std::thread sender([&] {
    EXPECT_EQ(stream_.send(bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  });
  std::vector<std::byte> sink(bytes.size());
  ASSERT_TRUE(recv_all(peer_, std::span(sink).first(kEarly), kForever).ok());
  const uint64_t acknowledgement[2] = {kStream, kEarly};
  ASSERT_TRUE(send_all(acknowledgements_, bytes_of(acknowledgement), kForever).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // until it is read
  ASSERT_TRUE(recv_all(peer_, std::span(sink).subspan(kEarly), kForever).ok());
  sender.join();
  EXPECT_EQ(stream_.send(bytes.data(), 1, 0), 1);
}

// The peer reports that it lacks bytes, and then acknowledges them while they are sent again.
TEST_F(RawPeerTest, BytesMayBeAcknowledgedWhileTheyAreSentAgain) {
  std::vector<std::byte> bytes(kRetainedBytes);
  std::thread reader(
      [&, peer = std::move(peer_)] { EXPECT_TRUE(recv_all(peer, bytes, kForever).ok()); });
  send_pattern(stream_, 0, kRetainedBytes, 1 << 16);
  reader.join();
  resume(0);
  while (stream_.connections() < 2) std::this_thread::yield();
  const uint64_t acknowledgement[2] = {kStream, kRetainedBytes};
  ASSERT_TRUE(send_all(acknowledgements_, bytes_of(acknowledgement), kForever).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // until it is read
  expect_pattern(peer_, 0, kRetainedBytes, 1 << 16);
  send_pattern(stream_, kRetainedBytes, 100, 100);
  expect_pattern(peer_, kRetainedBytes, 100, 100);
}

TEST_F(RawPeerTest, APeerThatHasReceivedMoreThanWasSentIsRefused) {
  send_pattern(stream_, 0, 10, 10);
  resume(11);
  EXPECT_NE(end().find("has received bytes that were not sent"), std::string::npos);
}

TEST_F(RawPeerTest, APeerThatAcknowledgesMoreThanWasSentIsRefused) {
  const uint64_t acknowledgement[2] = {kStream, 1};
  ASSERT_TRUE(send_all(acknowledgements_, bytes_of(acknowledgement), kForever).ok());
  EXPECT_NE(end().find("acknowledges bytes that were not sent"), std::string::npos);
}

TEST_F(RawPeerTest, AForeignConnectionIsRefused) {
  EXPECT_TRUE(stream_.lose("by the test"));
  Result<Socket> next = server_.next(int{kStream}, kForever);
  ASSERT_TRUE(next.ok());
  const ResumeHello foreign{kResumeMagic + 1, 0};
  ASSERT_TRUE(send_all(*next, bytes_of(foreign), kForever).ok());
  EXPECT_NE(end().find("does not belong to this session"), std::string::npos);
}

TEST_F(RawPeerTest, ASessionThatDoesNotExistEndsTheStreamAtOnce) {
  crossing_.between = [](int, Crossing::Pair) -> Result<Crossing::Pair> {
    return Status(Code::kNotFound, "the session has ended");
  };
  peer_.shutdown(SHUT_RDWR);
  EXPECT_EQ(end(), "the session has ended");
}

TEST_F(RawPeerTest, AnEndByThisSideWakesItsThreads) {
  crossing_.between = [](int, Crossing::Pair) -> Result<Crossing::Pair> {
    return Status(Code::kTimeout, "no route");
  };
  peer_.shutdown(SHUT_RDWR);
  std::thread receiver([&] {
    std::byte byte;
    EXPECT_EQ(stream_.recv(&byte, 1, 0), 0);
  });
  while (crossing_.made() == 0 && stream_.wait(POLLIN, 0)) std::this_thread::yield();
  stream_.shutdown(SHUT_RDWR);
  receiver.join();
  EXPECT_EQ(end(), "this side closed the connection");
}

// A send() that has sent bytes and still returns EAGAIN, as a cipher's may.
class BegunSocket final : public CutSocket {
 public:
  explicit BegunSocket(Socket connection) : CutSocket(std::move(connection), 1000, Cut::kClosed) {}
  ssize_t send(std::span<const iovec> pieces, int flags) override {
    if (!std::exchange(has_agreed_, true)) return CutSocket::send(pieces, flags);
    EXPECT_EQ(CutSocket::send({&pieces[0], 1}, flags), static_cast<ssize_t>(pieces[0].iov_len));
    errno = EAGAIN;
    return -1;
  }

 private:
  bool has_agreed_ = false;  // the ResumeHello is sent
};

TEST_F(RawPeerTest, BytesThatWereBegunAreNotSentTwice) {
  send_pattern(stream_, 0, 10, 10);
  expect_pattern(peer_, 0, 10, 10);
  crossing_.between = [](int, Crossing::Pair pair) -> Result<Crossing::Pair> {
    pair.first = Socket(std::make_unique<BegunSocket>(std::move(pair.first)));
    return pair;
  };
  resume(10);
  std::byte begun[50];
  for (size_t i = 0; i < sizeof begun; ++i) begun[i] = pattern(10 + i);
  while (stream_.send(begun, sizeof begun, MSG_DONTWAIT) < 0 && !peer_.wait(POLLIN, 0)) {
  }
  expect_pattern(peer_, 10, 50, 50);
  crossing_.between = [](int, Crossing::Pair pair) {
    return Result<Crossing::Pair>(std::move(pair));
  };
  resume(60);
  while (!stream_.is_connected()) std::this_thread::yield();
  resume(60);  // lost again before the call is repeated
  EXPECT_EQ(stream_.send(begun, sizeof begun, 0), 50);
  send_pattern(stream_, 60, 20, 20);
  expect_pattern(peer_, 60, 20, 20);
}

// The lost connection has received bytes that were not read yet. They are read now, or sent again.
TEST_F(RawPeerTest, UnreadBytesOfALostConnectionAreNeitherLostNorRepeated) {
  send_pattern(peer_, 0, 30, 30);
  EXPECT_TRUE(stream_.lose("by the test"));
  std::thread receiver([&] { expect_pattern(stream_, 0, 80, 80); });
  resume(0);
  EXPECT_TRUE(told_ == 0 || told_ == 30) << told_;
  send_pattern(peer_, told_, 80 - told_, 80);
  receiver.join();
}

TEST_F(RawPeerTest, AFarewellEndsALostStream) {
  crossing_.between = [](int, Crossing::Pair) -> Result<Crossing::Pair> {
    return Status(Code::kTimeout, "no route");
  };
  EXPECT_TRUE(stream_.lose("by the test"));
  const uint64_t farewell[2] = {Reconnects::kFarewell, 0};
  ASSERT_TRUE(send_all(acknowledgements_, bytes_of(farewell), kForever).ok());
  EXPECT_EQ(end(), "the peer ended the session");
}

// The peer closes the connection after this side has announced that it sends no more.
TEST_F(RawPeerTest, TheEndAfterAFarewellIsNoLoss) {
  stream_.shutdown(SHUT_WR);
  peer_.shutdown(SHUT_RDWR);
  std::byte byte;
  EXPECT_EQ(stream_.recv(&byte, 1, 0), 0);
  EXPECT_EQ(crossing_.made(), 0);
}

TEST(ResumableSocketLimit, TheLimitEndsTheStream) {
  Crossing crossing(std::chrono::milliseconds(50));
  crossing.between = [](int, Crossing::Pair) -> Result<Crossing::Pair> {
    return Status(Code::kUnavailable, "no route");
  };
  Crossing::Pair first = Crossing::make_pair();
  first.first.shutdown(SHUT_RDWR);
  Ends ends(crossing, std::move(first));
  std::byte byte;
  EXPECT_EQ(ends.client->recv(&byte, 1, 0), 0);
  EXPECT_EQ(ends.client->why_ended(), "the connection was lost and did not come back within 50ms");
  EXPECT_EQ(ends.server->recv(&byte, 1, 0), 0);
}

}  // namespace
}  // namespace rcuda::transport
