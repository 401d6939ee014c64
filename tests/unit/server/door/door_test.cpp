// Clients that reach the daemon through a door, with real processes.
#include "server/door/door.h"

#include <cerrno>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/socket_io.h"
#include "common/messages/handshake.h"
#include "common/messages/message_io.h"
#include "common/tls/handshake.h"
#include "server/door/doors.h"
#include "server/sandbox/call_filter.h"
#include "server/sandbox/start_process.h"
#include "tests/support/tcp_sockets.h"

namespace rcuda::server {
namespace {

using wire::MessageType;

Deadline soon() { return Deadline::clock::now() + std::chrono::seconds(60); }

std::vector<std::byte> bytes_of_text(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

class DoorTest : public ::testing::Test {
 protected:
  struct Client {
    UniqueFd near, tcp;  // the client's end, the daemon's
    Doors::Passage passage;
    DoorReport report;
    Socket tls;  // the client's end after the handshake; `near` is in it
    tls::Key proof{}, session{};

    int stream() const { return passage.stream.fd(); }
  };

  void start(size_t most = 64, Doors::Clock::duration spared = Doors::kSpared) {
    doors_ = std::make_unique<Doors>(
        [this](int control) {
          const Result<pid_t> pid = spawn_door(RCUDA_TEST_SERVER, control);
          if (pid.ok()) pids_.push_back(*pid);
          return pid;
        },
        most, spared);
  }
  bool has_no_room_for(const std::string& origin) {
    const UniqueFd any(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return doors_->open(origin, any.get()).status().code() == Code::kTimeout;
  }
  Client open(const std::string& origin = "10.0.0.1") {
    Client client;
    std::tie(client.near, client.tcp) = test::tcp_pair().value();
    auto passage = doors_->open(origin, client.tcp.get());
    EXPECT_TRUE(passage.ok()) << passage.status().message();
    if (passage.ok()) client.passage = std::move(passage).value();
    return client;
  }
  void take_report(Client* client) {
    const auto got = recv_all(client->stream(), writable_bytes_of(client->report), soon());
    EXPECT_TRUE(got.ok()) << got.message();
  }
  Client connect(const std::string& origin = "10.0.0.1") {
    Client client = open(origin);
    auto made = tls::connect(client.near.get(), soon());
    EXPECT_TRUE(made.ok()) << made.status().message();
    take_report(&client);
    if (!made.ok()) return client;
    client.proof = (*made)->exported(tls::kProofLabel);
    client.session = (*made)->exported(tls::kSessionLabel);
    client.tls = Socket(std::move(client.near), std::move(made).value());
    return client;
  }
  template <typename From, typename To>
  void passes(const From& from, const To& to, MessageType type,
              const std::vector<std::byte>& body = {}) {
    ASSERT_TRUE(wire::write_message(from, type, body, soon()).ok());
    const auto got = wire::read_message(to, soon());
    ASSERT_TRUE(got.ok()) << got.status().message();
    EXPECT_EQ(got->first, type);
    EXPECT_EQ(got->second, body);
  }
  // All messages up to the client's request.
  void introduce(Client& client) {
    passes(client.stream(), client.tls, MessageType::kChallenge, wire::encode(wire::Challenge()));
    wire::Authenticate proof;
    proof.method = wire::Method::kMunge;
    passes(client.tls, client.stream(), MessageType::kAuthenticate, wire::encode(proof));
    passes(client.stream(), client.tls, MessageType::kAuthenticated);
    passes(client.tls, client.stream(), MessageType::kHello, std::vector<std::byte>(100));
  }
  static bool has_ended(int socket) {
    char byte;
    pollfd item{socket, POLLIN, 0};
    return ::poll(&item, 1, 60'000) == 1 && ::recv(socket, &byte, 1, MSG_DONTWAIT) <= 0;
  }
  [[nodiscard]] bool until(const std::function<bool()>& done) {
    const Deadline end = soon();
    while (!done() && Deadline::clock::now() < end) {
      doors_->refill(false);
      ::poll(nullptr, 0, 5);
    }
    return done();
  }

  std::vector<pid_t> pids_;
  std::unique_ptr<Doors> doors_;
};

TEST_F(DoorTest, ReportsTheKeysAndPassesMessages) {
  start();
  Client client = connect();
  EXPECT_STREQ(client.report.failure, "");
  EXPECT_EQ(client.report.proof, client.proof);
  EXPECT_EQ(client.report.session, client.session);
  introduce(client);
  const std::vector<std::byte> much(1 << 20, std::byte{7});
  std::thread daemon([&] {
    EXPECT_TRUE(wire::write_message(client.stream(), MessageType::kStatus, much, soon()).ok());
    client.passage = {};
  });
  const auto got = wire::read_message(client.tls, soon());
  daemon.join();
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->second, much);
}

// The last message goes to the client, and everything after it to the worker, in plain TCP.
TEST_F(DoorTest, HandsTheConnectionOverWithoutCloseNotify) {
  start();
  for (int i = 0; i < 30; ++i) {
    Client client = connect();
    introduce(client);
    std::thread answers([&] {
      std::byte last[8];
      EXPECT_TRUE(recv_all(client.tls, last, soon()).ok());
      EXPECT_TRUE(send_all(client.tls.fd(), bytes_of_text("for the worker"), soon()).ok());
    });
    ASSERT_TRUE(send_all(client.stream(), bytes_of_text("Assigned"), soon()).ok());
    client.passage = {};
    std::vector<std::byte> got(std::size("for the worker") - 1);
    ASSERT_TRUE(recv_all(client.tcp.get(), got, soon()).ok());
    EXPECT_EQ(got, bytes_of_text("for the worker"));
    answers.join();
    ASSERT_TRUE(send_all(client.tcp.get(), bytes_of_text("of the worker"), soon()).ok());
    got.resize(std::size("of the worker") - 1);
    ASSERT_TRUE(recv_all(client.tls.fd(), got, soon()).ok());
    EXPECT_EQ(got, bytes_of_text("of the worker"));
    client.tcp.reset();
    EXPECT_TRUE(has_ended(client.tls.fd()));  // no other process has the connection
  }
  EXPECT_EQ(pids_.size(), 1u);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(DoorTest, OneHasRoomForAsManyConnectionsAsTheServer) {
  constexpr size_t kMost = 2048 + 1024;  // Connections, Admission
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_cur < 3 * kMost) GTEST_SKIP() << "few files may be open here";
  start();
  std::vector<std::pair<UniqueFd, Doors::Passage>> silent(kMost - 1);
  for (auto& [near, passage] : silent) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    near.reset(ends[0]);
    const UniqueFd client(ends[1]);
    Result<Doors::Passage> opened = doors_->open("10.0.0.1", client.get());
    for (; opened.status().code() == Code::kTimeout; ::poll(nullptr, 0, 1)) {
      opened = doors_->open("10.0.0.1", client.get());
    }
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    passage = std::move(opened).value();
  }
  Client last = connect();
  introduce(last);
  char byte;
  for (const auto& [near, passage] : silent) {
    ASSERT_LT(::recv(near.get(), &byte, 1, MSG_DONTWAIT), 0);  // the door serves it still
  }
  EXPECT_EQ(pids_.size(), 1u);
}
#endif

TEST_F(DoorTest, WhatIsNotTlsFailsWithAReason) {
  start();
  Client client = open();
  ASSERT_TRUE(send_all(client.near.get(), bytes_of_text("GET / HTTP/1.0\r\n\r\n"), soon()).ok());
  take_report(&client);
  EXPECT_STRNE(client.report.failure, "");
  EXPECT_TRUE(has_ended(client.stream()));
}

// OpenSSL itself would accept messages of 128 KiB, and use several times as much memory for them.
TEST_F(DoorTest, AHandshakeIsShort) {
  start();
  Client client = open();
  constexpr size_t kRecord = 12u << 10;
  // A TLS record with the beginning of a ClientHello of 96 KiB.
  std::vector<std::byte> record(5 + kRecord);
  const uint8_t begin[] = {0x16, 3, 1, kRecord >> 8, 0, 1, 1, 0x80, 0};
  std::memcpy(record.data(), begin, sizeof begin);
  ASSERT_TRUE(send_all(client.near.get(), record, soon()).ok());
  pollfd item{client.stream(), POLLIN, 0};
  EXPECT_EQ(::poll(&item, 1, 100), 0) << "the door waits for the rest";
  record[5] = std::byte{0};  // the next record continues the ClientHello
  ASSERT_TRUE(send_all(client.near.get(), record, soon()).ok());
  take_report(&client);
  EXPECT_STRNE(client.report.failure, "");
  EXPECT_TRUE(has_ended(client.stream()));
}

// Messages that are not a valid introduction do not reach the daemon.
TEST_F(DoorTest, RefusesWhatIsNoProof) {
  start();
  for (const auto& [type, body] :
       {std::pair(MessageType::kAuthenticate, 9u),
        std::pair(MessageType::kHello, kMostIntroduction + 1), std::pair(MessageType{99}, 0u)}) {
    Client client = connect();
    passes(client.stream(), client.tls, MessageType::kChallenge);
    ASSERT_TRUE(wire::write_message(client.tls, type, std::vector<std::byte>(body), soon()).ok());
    const auto answer = wire::read_message(client.tls, soon());
    ASSERT_TRUE(answer.ok()) << answer.status().message();
    EXPECT_EQ(answer->first, MessageType::kRefusal);
    EXPECT_TRUE(has_ended(client.stream()));
  }
}

// The daemon ends connections by shutdown(): one during its handshake, one in the middle of a
// message. An answer that the daemon has sent before still arrives.
TEST_F(DoorTest, TheDaemonEndsAConnection) {
  start();
  Client silent = open();
  ::shutdown(silent.tcp.get(), SHUT_RDWR);
  silent.tcp.reset();
  silent.passage = {};
  EXPECT_TRUE(has_ended(silent.near.get()));
  Client half = connect();
  passes(half.stream(), half.tls, MessageType::kChallenge);
  ASSERT_TRUE(send_all(half.tls, bytes_of_text("half"), soon()).ok());
  ASSERT_TRUE(wire::write_message(half.stream(), MessageType::kRefusal, {}, soon()).ok());
  ::shutdown(half.tcp.get(), SHUT_RD);
  half.tcp.reset();
  half.passage = {};
  const auto answer = wire::read_message(half.tls, soon());
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(answer->first, MessageType::kRefusal);
  EXPECT_TRUE(has_ended(half.tls.fd()));
}

TEST_F(DoorTest, AClientThatLeavesEndsTheStream) {
  start();
  Client client = connect();
  passes(client.stream(), client.tls, MessageType::kChallenge);
  client.tls = Socket();
  EXPECT_TRUE(has_ended(client.stream()));
}

TEST_F(DoorTest, ADoorThatDiesFailsItsConnectionsOnly) {
  start();
  const Client client = connect(), other = connect("10.0.0.2");
  ASSERT_EQ(pids_.size(), 2u);
  ASSERT_EQ(::kill(pids_.front(), SIGKILL), 0);
  EXPECT_TRUE(has_ended(client.stream()));
  EXPECT_TRUE(until([&] { return doors_->size() == 1; }));
  passes(other.stream(), other.tls, MessageType::kChallenge);
  (void)connect();  // through another door
  EXPECT_EQ(pids_.size(), 3u);
}

TEST_F(DoorTest, EachOriginHasItsOwnDoorAndTheirNumberIsBounded) {
  start(2, {});
  const Client one = connect("10.0.0.1"), again = connect("10.0.0.1"), two = connect("10.0.0.2");
  EXPECT_EQ(pids_.size(), 2u);
  const Client newest = connect("10.0.0.1");
  // The third origin's door replaces the second's, which has had no new client for a longer time.
  Client three = connect("10.0.0.3");
  EXPECT_EQ(doors_->size(), 2u);
  EXPECT_EQ(pids_.size(), 3u);
  EXPECT_TRUE(has_ended(two.stream()));
  passes(one.stream(), one.tls, MessageType::kChallenge);
  // Origins with a known client keep their doors.
  doors_->keep(one.passage);
  const Client four = connect("10.0.0.4"), five = connect("10.0.0.5");
  EXPECT_TRUE(has_ended(three.stream()));
  passes(newest.stream(), newest.tls, MessageType::kChallenge);
  EXPECT_EQ(doors_->size(), 3u);
}

constexpr std::chrono::hours kLong{1};

TEST_F(DoorTest, ADoorIsSparedForAMoment) {
  start(2, kLong);
  const Client one = connect("10.0.0.1"), two = connect("10.0.1.1");
  EXPECT_TRUE(has_no_room_for("10.0.2.1"));
  EXPECT_FALSE(has_no_room_for("10.0.0.1"));  // has a door
  EXPECT_EQ(pids_.size(), 3u);                // one more is started in advance
  passes(one.stream(), one.tls, MessageType::kChallenge);
  passes(two.stream(), two.tls, MessageType::kChallenge);
}

// An attacker with many addresses in one network cannot keep other networks out.
TEST_F(DoorTest, OneNetworkKeepsNoOtherOut) {
  start(3, kLong);
  const Client one = connect("2001:db8:7:1::/64"), two = connect("2001:db8:7:2::/64"),
               three = connect("2001:db8:7:3::/64");
  EXPECT_TRUE(has_no_room_for("2001:db8:7:4::/64"));
  const Client other = connect("2001:db8:8:1::/64");
  EXPECT_TRUE(has_ended(one.stream()));
  EXPECT_TRUE(has_no_room_for("2001:db8:7:4::/64"));
  passes(other.stream(), other.tls, MessageType::kChallenge);
  passes(two.stream(), two.tls, MessageType::kChallenge);
  passes(three.stream(), three.tls, MessageType::kChallenge);
}

// A network with many origins replaces only its own doors, even if another network's client is
// slow.
TEST_F(DoorTest, ANetworkOfManyReplacesItsOwnOnly) {
  start(3, {});
  const Client slow = connect("10.0.0.1"), one = connect("10.0.1.1"), two = connect("10.0.1.2");
  const Client three = connect("10.0.1.3");
  EXPECT_TRUE(has_ended(one.stream()));
  passes(slow.stream(), slow.tls, MessageType::kChallenge);
}

// The number is limited even if the clients leave immediately.
TEST_F(DoorTest, OneNetworkStartsOnlySoManyDoors) {
  std::vector<UniqueFd> started;
  doors_ = std::make_unique<Doors>([&](int control) {
    started.emplace_back(::fcntl(control, F_DUPFD_CLOEXEC, 3));
    return Result<pid_t>(0);
  });
  const auto visit = [&](const std::string& network, int address) {
    return !has_no_room_for(network + std::to_string(address));
  };
  int served = 0;
  for (int i = 0; i < 1000; ++i) served += visit("10.0.0.", i % 250);
  EXPECT_LT(served, 500);
  EXPECT_GT(served, 0);
  EXPECT_LT(started.size(), 500u);
  EXPECT_TRUE(visit("10.0.1.", 1));
}

// The door's process has ended, but refill() has not noticed that yet.
TEST_F(DoorTest, ADeadDoorIsReplaced) {
  start();
  (void)connect();
  ASSERT_EQ(::kill(pids_.front(), SIGKILL), 0);
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pids_.front()), nullptr, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(has_no_room_for("10.0.0.1"));
  (void)connect();
  EXPECT_EQ(pids_.size(), 2u);
}

TEST_F(DoorTest, ADoorWithoutNumbersForDescriptorsDropsSomeClientsOnly) {
  size_t started = 0;
  doors_ = std::make_unique<Doors>([&](int control) {
    ++started;
    return start_process(
        {"/bin/sh",
         {"sh", "-c", "ulimit -n 20 && exec \"$0\" " + std::string(kDoorOption), RCUDA_TEST_SERVER},
         {},
         {{control, kDoorControl}}});
  });
  Client first = connect();
  {
    std::vector<Client> clients(30);
    for (Client& client : clients) client = open();
    EXPECT_TRUE(has_ended(clients.back().stream()));
  }
  introduce(first);
  (void)connect();
  EXPECT_EQ(started, 1u);
}

TEST_F(DoorTest, ADoorWithoutConnectionsMakesRoomAndStillSends) {
  start(1, kLong);
  Client client = open();
  const int little = 16 << 10;
  ::setsockopt(client.near.get(), SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
  ::setsockopt(client.tcp.get(), SOL_SOCKET, SO_SNDBUF, &little, sizeof little);
  auto made = tls::connect(client.near.get(), soon());
  ASSERT_TRUE(made.ok()) << made.status().message();
  client.tls = Socket(std::move(client.near), std::move(made).value());
  take_report(&client);
  introduce(client);
  const std::vector<std::byte> much(120'000, std::byte{7});
  ASSERT_TRUE(wire::write_message(client.stream(), MessageType::kStatus, much, soon()).ok());
  client.passage = {};
  const Client other = connect("10.0.1.1");
  EXPECT_EQ(doors_->size(), 1u);
  EXPECT_EQ(pids_.size(), 2u);
  const auto got = wire::read_message(client.tls, soon());
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->second, much);
  EXPECT_TRUE(until([&] { return !doors_->has(pids_.front()); }));
}

TEST_F(DoorTest, WorksHereOrSaysThatItDoesNot) {
  start();
  EXPECT_TRUE(doors_->check().ok());
  Doors broken([](int control) { return spawn_door("/bin/false", control); });
  const Status status = broken.check();
  EXPECT_NE(status.message().find("does not start"), std::string::npos) << status.message();
}

// A door that ends at its start must not be started again for each client.
TEST_F(DoorTest, ADoorThatEndsAtItsStartIsNotStartedAgainAtOnce) {
  size_t started = 0;
  doors_ = std::make_unique<Doors>([&](int control) {
    ++started;
    return spawn_door("/bin/false", control);
  });
  ASSERT_TRUE(until([&] {
    if (started == 0) doors_->refill(true);
    return doors_->size() == 0;
  }));
  EXPECT_TRUE(has_no_room_for("10.0.0.1"));
  EXPECT_EQ(started, 1u);
}

TEST_F(DoorTest, ADoorEndsAfterItsLastConnectionAndServesNoOtherOrigin) {
  start();
  (void)connect();
  EXPECT_TRUE(until([&] { return doors_->size() == 0; }));
  EXPECT_TRUE(until([&] { return ::kill(pids_.front(), 0) != 0; }));
  (void)connect("10.0.0.2");
  EXPECT_EQ(pids_.size(), 2u);
}

TEST_F(DoorTest, OneIsStartedAheadOfNeed) {
  start();
  doors_->refill(true);
  doors_->refill(true);
  ASSERT_EQ(pids_.size(), 1u);
  EXPECT_TRUE(doors_->has(pids_.front()));
  EXPECT_FALSE(doors_->has(::getpid()));
  (void)connect();
  EXPECT_EQ(pids_.size(), 1u);
}

unsigned long long limit_of(pid_t pid, const std::string& name) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/limits");
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  const size_t at = all.find(name);
  return at == std::string::npos ? ~0ull : std::stoull(all.substr(at + name.size()));
}

TEST_F(DoorTest, ADoorIsNobodyInASandbox) {
  start();
  const Client client = connect();
  std::ifstream file("/proc/" + std::to_string(pids_.front()) + "/status");
  const std::string status{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(status.find("NoNewPrivs:\t1"), std::string::npos) << status;
  EXPECT_NE(status.find("Seccomp:\t2"), std::string::npos) << status;
  EXPECT_GE(::getpriority(PRIO_PROCESS, static_cast<id_t>(pids_.front())), 3);
  EXPECT_LE(limit_of(pids_.front(), "Max open files"), 8192u);
  if (::geteuid() == 0) {
    EXPECT_NE(status.find("Uid:\t65534\t65534\t65534\t65534"), std::string::npos) << status;
    EXPECT_NE(status.find("CapEff:\t0000000000000000"), std::string::npos) << status;
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* nothing(void*) { return nullptr; }

// The number of the first forbidden action that succeeds in a process that may use streams only.
int possible_with_streams_only() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 1;
  if (!filter_calls(CallFilter::kStreamsOnly).ok()) return 2;
  char byte = 'x';
  if (::send(ends[0], &byte, 1, MSG_NOSIGNAL) != 1 || ::recv(ends[1], &byte, 1, 0) != 1) return 3;
  const iovec piece{&byte, 1};
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(&piece);
  message.msg_iovlen = 1;
  if (::sendmsg(ends[0], &message, 0) >= 0 || errno != EPERM) return 4;
  if (::open("/etc/hostname", O_RDONLY) >= 0 || errno != EPERM) return 5;
  if (::socket(AF_INET, SOCK_STREAM, 0) >= 0 || errno != EPERM) return 6;
  if (::fork() >= 0 || errno != EPERM) return 7;
  const linger hour{1, 3600};
  if (::setsockopt(ends[0], SOL_SOCKET, SO_LINGER, &hour, sizeof hour) == 0) return 8;
  constexpr int kProtection = PROT_READ | PROT_WRITE;
  if (::mmap(nullptr, 4096, kProtection | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) !=
      MAP_FAILED) {
    return 9;
  }
  void* const memory = ::mmap(nullptr, 4096, kProtection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 10;
  if (::mprotect(memory, 4096, PROT_READ | PROT_EXEC) == 0) return 11;
  if (::kill(::getppid(), 0) == 0) return 12;
  if (::send(ends[0], &byte, 1, MSG_OOB | MSG_NOSIGNAL) >= 0 || errno != EPERM) return 15;
  if (::recv(ends[1], &byte, 1, MSG_OOB) >= 0 || errno != EPERM) return 16;
  if (::recvmsg(ends[1], &message, MSG_OOB) >= 0 || errno != EPERM) return 17;
  pthread_t thread;
  if (::pthread_create(&thread, nullptr, nothing, nullptr) == 0) return 13;
  return 0;
}

TEST(StreamsOnlyTest, AllowsNothingElse) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(possible_with_streams_only());
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(WIFEXITED(status));
}
#endif

}  // namespace
}  // namespace rcuda::server
