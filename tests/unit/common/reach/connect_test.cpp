#include "common/reach/connect.h"

#include <chrono>
#include <csignal>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "tests/support/host_name.h"

namespace rcuda::wire {
namespace {

using test::bind_tcp;
using test::HostName;

// A working test never reaches this limit, even on a loaded machine.
constexpr auto kPatience = std::chrono::seconds(100);

// Listens where clients of this machine look for a server, with room for `backlog` + 1 clients.
class LocalListener {
 public:
  explicit LocalListener(int backlog)
      : port_holder_(bind_tcp("127.0.0.1", &port_)),
        socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const LocalAddress address(port_);
    EXPECT_EQ(::bind(socket_.get(), address.get(), address.bytes()), 0);
    EXPECT_EQ(::listen(socket_.get(), backlog), 0);
  }
  uint16_t port() const { return port_; }

 private:
  uint16_t port_ = 0;
  UniqueFd port_holder_;
  UniqueFd socket_;
};

const transport::Medium* const kAuto = nullptr;
const transport::Medium* shm() { return transport::find_medium("shm"); }

TEST(ConnectTest, AllLoopbackAddressesAreThisMachine) {
  LocalListener server(16);
  for (const char* host : {"127.0.0.1", "127.0.1.1", "127.255.0.9", "::ffff:127.0.1.1"}) {
    for (const transport::Medium* const medium : {shm(), kAuto}) {
      const auto connection = connect_server(host, server.port(), medium, kPatience);
      ASSERT_TRUE(connection.ok()) << host << ": " << connection.status().message();
      EXPECT_EQ(connection->medium, shm()) << host;
    }
  }
  for (const char* host : {"192.0.2.1", "::ffff:192.0.2.1"}) {
    const auto connection = connect_server(host, server.port(), shm(), kPatience);
    EXPECT_EQ(connection.status().code(), Code::kInvalidArgument) << host;
  }
}

// Sends the program a signal every millisecond.
class Alarms {
 public:
  Alarms() {
    struct sigaction action {};
    action.sa_handler = [](int) {};  // without SA_RESTART
    ::sigaction(SIGALRM, &action, &before_);
    set(1000);
  }
  ~Alarms() {
    set(0);
    ::sigaction(SIGALRM, &before_, nullptr);
  }

 private:
  static void set(int microseconds) {
    const itimerval every{{0, microseconds}, {0, microseconds}};
    ::setitimer(ITIMER_REAL, &every, nullptr);
  }
  struct sigaction before_ {};
};

TEST(ConnectTest, AServerThatTakesNoCallersIsGivenUpInTime) {
  LocalListener server(0);
  const auto waiting = connect_server("127.0.0.1", server.port(), shm(), kPatience);
  ASSERT_TRUE(waiting.ok()) << waiting.status().message();
  // A connected socket has no send timeout.
  timeval timeout{1, 1};
  socklen_t bytes = sizeof timeout;
  ::getsockopt(waiting->socket.fd(), SOL_SOCKET, SO_SNDTIMEO, &timeout, &bytes);
  EXPECT_EQ(timeout.tv_sec, 0);
  EXPECT_EQ(timeout.tv_usec, 0);
  const Alarms alarms;
  for (const transport::Medium* const medium : {shm(), kAuto}) {
    const auto late =
        connect_server("127.0.0.1", server.port(), medium, std::chrono::milliseconds(20));
    EXPECT_EQ(late.status().code(), Code::kTimeout) << late.status().message();
  }
}

// Listens, but accepts no connection: its backlog is full.
class SilentListener {
 public:
  explicit SilentListener(const char* host)
      : socket_(bind_tcp(host, &port_)), caller_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    EXPECT_EQ(::listen(socket_.get(), 0), 0);
    sockaddr_storage address{};
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    socklen_t bytes = sizeof address;
    EXPECT_EQ(::getsockname(socket_.get(), generic, &bytes), 0);
    EXPECT_EQ(::connect(caller_.get(), generic, bytes), 0);
  }
  uint16_t port() const { return port_; }

 private:
  uint16_t port_ = 0;
  UniqueFd socket_;
  UniqueFd caller_;
};

TEST(ConnectTest, ASilentAddressLeavesTheOthersTheirShareOfTheTime) {
  const SilentListener silent("127.0.0.2");
  uint16_t port = silent.port();
  const UniqueFd listener = bind_tcp("127.0.0.3", &port);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  // Many addresses, so that the first address gets a short share of the time and the rest is long.
  HostName::Addresses addresses(200, "127.0.0.3");
  addresses.front() = "127.0.0.2";
  const HostName name({addresses});
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const auto socket = connect_tcp(HostName::kName, port, deadline);
  ASSERT_TRUE(socket.ok()) << socket.status().message();
  EXPECT_LT(std::chrono::steady_clock::now(), deadline);
}

TEST(ConnectTest, AFurtherConnectionGoesToTheSameHost) {
  const test::MovingHost host;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const auto socket = connect_tcp(HostName::kName, host.port(), deadline);
  ASSERT_TRUE(socket.ok()) << socket.status().message();
  EXPECT_TRUE(host.accept().to_first);
  const auto peer = peer_address(socket->get());
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  const auto further = connect_again(*peer, deadline);
  ASSERT_TRUE(further.ok()) << further.status().message();
  EXPECT_TRUE(host.accept().to_first);
  // The name now resolves to the other host.
  const auto named = connect_tcp(HostName::kName, host.port(), deadline);
  ASSERT_TRUE(named.ok()) << named.status().message();
  EXPECT_FALSE(host.accept().to_first);
}

}  // namespace
}  // namespace rcuda::wire
