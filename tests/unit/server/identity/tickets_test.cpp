#include "server/identity/tickets.h"

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/daemon/connection/listener.h"

namespace rcuda::server {
namespace {

using std::chrono::seconds;

constexpr uid_t kAda = 1000, kBob = 1001;
const Tickets::Clock::time_point kStart{seconds(1000)};

wire::TicketQuery connection_from(uint16_t port) {
  wire::TicketQuery connection;
  connection.client.address[15] = connection.server.address[15] = 1;
  connection.client.port = port;
  connection.server.port = wire::kDefaultPort;
  return connection;
}

class TicketsTest : public ::testing::Test {
 protected:
  wire::Ticket issue(uid_t user, uint16_t port, Tickets::Clock::time_point now = kStart) {
    Identity identity;
    identity.uid = user;
    Result<wire::Ticket> ticket = tickets_.issue(identity, connection_from(port), now);
    EXPECT_TRUE(ticket.ok());
    return *ticket;
  }
  std::optional<uid_t> redeem(const wire::Ticket& ticket, uint16_t port,
                              Tickets::Clock::time_point now = kStart) {
    const std::optional<Identity> identity = tickets_.redeem(ticket, connection_from(port), now);
    return identity ? identity->uid : std::nullopt;
  }

  Tickets tickets_{seconds(10)};
};

TEST_F(TicketsTest, ATicketSaysWhoseItIsOnce) {
  const wire::Ticket ada = issue(kAda, 1), bob = issue(kBob, 2);
  EXPECT_EQ(redeem(bob, 2), kBob);
  EXPECT_EQ(redeem(ada, 1), kAda);
  EXPECT_EQ(redeem(ada, 1), std::nullopt);
  EXPECT_EQ(redeem(bob, 2), std::nullopt);
  EXPECT_EQ(tickets_.size(), 0u);
}

TEST_F(TicketsTest, AGuessIsNone) {
  wire::Ticket ticket = issue(kAda, 1);
  for (size_t i = 0; i < sizeof ticket.secret; ++i) {
    wire::Ticket guess = ticket;
    guess.secret[i] ^= 0x80;
    EXPECT_EQ(redeem(guess, 1), std::nullopt) << i;
  }
  EXPECT_EQ(redeem(wire::Ticket{}, 1), std::nullopt);
  EXPECT_EQ(redeem(ticket, 1), kAda);
}

TEST_F(TicketsTest, TicketsDiffer) {
  std::set<std::string> seen;
  for (uint16_t i = 0; i < 1000; ++i) {
    const wire::Ticket ticket = issue(kAda, i);
    seen.emplace(reinterpret_cast<const char*>(ticket.secret), sizeof ticket.secret);
  }
  EXPECT_EQ(seen.size(), 1000u);
}

// A program that received the ticket in the server's place cannot use it.
TEST_F(TicketsTest, OnAnotherConnectionItIsSpent) {
  const wire::Ticket other_client = issue(kAda, 1);
  EXPECT_EQ(redeem(other_client, 2), std::nullopt);
  EXPECT_EQ(redeem(other_client, 1), std::nullopt);
  const wire::Ticket other_server = issue(kAda, 1);
  wire::TicketQuery connection = connection_from(1);
  connection.server.address[0] = 10;
  EXPECT_EQ(tickets_.redeem(other_server, connection, kStart), std::nullopt);
}

TEST_F(TicketsTest, ItIsGoodForItsLifetime) {
  const wire::Ticket first = issue(kAda, 1), second = issue(kAda, 2);
  EXPECT_EQ(redeem(first, 1, kStart + seconds(10) - std::chrono::nanoseconds(1)), kAda);
  EXPECT_EQ(redeem(second, 2, kStart + seconds(10)), std::nullopt);
  EXPECT_EQ(tickets_.size(), 0u);
}

TEST_F(TicketsTest, AUserWithTooManyLosesTheOldestAndNobodyElseDoes) {
  const wire::Ticket bob = issue(kBob, 1);
  std::vector<wire::Ticket> ada;
  for (size_t i = 0; i <= Tickets::kMostPerUser; ++i) {
    ada.push_back(issue(kAda, static_cast<uint16_t>(i)));
  }
  EXPECT_EQ(tickets_.size(), Tickets::kMostPerUser + 1);
  EXPECT_EQ(redeem(ada[0], 0), std::nullopt);
  for (size_t i = 1; i < ada.size(); ++i) EXPECT_EQ(redeem(ada[i], static_cast<uint16_t>(i)), kAda);
  EXPECT_EQ(redeem(bob, 1), kBob);
}

// Runs in a network namespace of its own, because it changes a setting of the network.
TEST(ListenerTest, ThatOfAllAddressesIsOfBothFamilies) {
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr int kSkipped = 77;
    if (::unshare(CLONE_NEWNET) != 0) ::_exit(kSkipped);
    const UniqueFd setting(::open("/proc/sys/net/ipv6/bindv6only", O_WRONLY | O_CLOEXEC));
    if (::write(setting.get(), "1", 1) != 1) ::_exit(kSkipped);
    const Result<Listener> listener = listen_on("::", 0);
    if (!listener.ok()) ::_exit(1);
    int only_v6 = -1;
    socklen_t size = sizeof only_v6;
    ::getsockopt(listener->tcp.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, &size);
    ::_exit(only_v6 == 0 ? 0 : 2);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no network namespace of its own here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(ListenerTest, WhoSharesABound) {
  const auto origin = [](const char* text) {
    wire::Endpoint endpoint;
    EXPECT_EQ(::inet_pton(AF_INET6, text, endpoint.address), 1) << text;
    return origin_of(endpoint);
  };
  EXPECT_EQ(origin("::ffff:10.0.0.7"), "10.0.0.7");
  EXPECT_NE(origin("::ffff:10.0.0.7"), origin("::ffff:10.0.0.8"));
  EXPECT_EQ(origin("::ffff:127.0.0.1"), origin("::ffff:127.9.9.9"));
  EXPECT_EQ(origin("::ffff:127.0.0.1"), origin("::1"));
  EXPECT_EQ(origin("2001:db8:1:2::1"), "2001:db8:1:2::/64");
  EXPECT_EQ(origin("2001:db8:1:2::1"), origin("2001:db8:1:2:3:4:5:6"));
  EXPECT_NE(origin("2001:db8:1:2::1"), origin("2001:db8:1:3::1"));
}

}  // namespace
}  // namespace rcuda::server
