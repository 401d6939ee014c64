// The users of its own machine that the daemon accepts: the real binary, reached over its sockets.
// tests/e2e/users_test.py shows the errors that programs of other users get.
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "common/messages/export_messages.h"
#include "common/reach/connect.h"
#include "common/reach/same_host.h"
#include "tests/support/server_process.h"

namespace rcuda::server {
namespace {

using test::patience;
using test::ServerProcess;
using wire::MessageType;

Status send(int socket, MessageType type, const std::vector<std::byte>& body = {}) {
  return wire::write_message(socket, type, body, patience());
}

// Reads an answer. Returns the reason if it is a Refusal, otherwise an empty string.
std::string refusal(int socket) {
  auto answer = test::read_answer(socket);
  if (!answer.ok()) return "no answer: " + answer.status().message();
  if (answer->first != MessageType::kRefusal) return "";
  return wire::decode<wire::Refusal>(answer->second)->reason;
}

// Whether the server answers a query that it answers only to users it accepts.
bool is_served(int socket) {
  EXPECT_TRUE(send(socket, MessageType::kStatusQuery).ok());
  auto answer = test::read_answer(socket);
  return answer.ok() && answer->first == MessageType::kStatus;
}

// A ticket for a connection with these ends, encoded as the body of a message.
std::vector<std::byte> ticket_for(const ServerProcess& server, const wire::TicketQuery& query) {
  const UniqueFd local = server.connect_local();
  EXPECT_TRUE(send(local.get(), MessageType::kTicketQuery, wire::encode(query)).ok());
  auto answer = wire::read_message(local.get(), patience());
  if (!answer.ok() || answer->first != MessageType::kTicket) {
    ADD_FAILURE() << "no ticket was given";
    return {};
  }
  return answer->second;
}

std::vector<std::byte> ticket_for(const ServerProcess& server, int socket) {
  return ticket_for(server, {*wire::own_endpoint(socket), *wire::peer_endpoint(socket)});
}

// The IPv4 addresses of this machine.
std::vector<std::string> own_addresses() {
  ifaddrs* interfaces = nullptr;
  EXPECT_EQ(::getifaddrs(&interfaces), 0);
  std::vector<std::string> addresses;
  for (const ifaddrs* at = interfaces; at; at = at->ifa_next) {
    if (!at->ifa_addr || at->ifa_addr->sa_family != AF_INET) continue;
    char text[INET_ADDRSTRLEN];
    const auto& v4 = *reinterpret_cast<const sockaddr_in*>(at->ifa_addr);
    addresses.emplace_back(::inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text));
  }
  ::freeifaddrs(interfaces);
  EXPECT_FALSE(addresses.empty());
  return addresses;
}

TEST(DoorTest, AClientOfTheSameHostNeedsATicketAtEveryAddress) {
  const ServerProcess server({"--listen", "0.0.0.0"});
  ASSERT_NE(server.port(), 0);
  for (const std::string& address : own_addresses()) {
    for (const MessageType type : {MessageType::kHello, MessageType::kStatusQuery}) {
      const UniqueFd without = server.connect_tcp(address);
      ASSERT_TRUE(send(without.get(), type,
                       type == MessageType::kHello ? wire::encode(test::hello("tcp"))
                                                   : std::vector<std::byte>{})
                      .ok());
      const std::string reason = refusal(without.get());
      EXPECT_NE(reason.find("brings no ticket"), std::string::npos) << address << reason;
      EXPECT_NE(reason.find("@rcuda-" + std::to_string(server.port())), std::string::npos)
          << reason;
    }
    const UniqueFd with = server.connect_tcp(address);
    ASSERT_TRUE(wire::present_ticket(with.get(), {}, patience()).ok());
    EXPECT_TRUE(is_served(with.get())) << address;
  }
}

TEST(DoorTest, ATicketIsGoodOnce) {
  const ServerProcess server;
  const UniqueFd socket = server.connect_tcp();
  const auto ticket = ticket_for(server, socket.get());
  ASSERT_TRUE(send(socket.get(), MessageType::kTicket, ticket).ok());
  ASSERT_TRUE(send(socket.get(), MessageType::kTicket, ticket).ok());
  EXPECT_NE(refusal(socket.get()).find("ticket is unknown, used"), std::string::npos);
}

// Another program listens at the address to which a client connects, and presents the client's
// ticket to the server.
TEST(DoorTest, AnothersTicketIsRefusedAndSpent) {
  const ServerProcess server;
  const UniqueFd theirs = server.connect_tcp(), mine = server.connect_tcp();
  const auto ticket = ticket_for(server, theirs.get());
  ASSERT_TRUE(send(mine.get(), MessageType::kTicket, ticket).ok());
  EXPECT_NE(refusal(mine.get()).find("another connection"), std::string::npos);
  ASSERT_TRUE(send(theirs.get(), MessageType::kTicket, ticket).ok());
  EXPECT_NE(refusal(theirs.get()).find("ticket is unknown, used"), std::string::npos);
  // A server that listens at every address issues the ticket, but only for that connection.
  const ServerProcess everywhere({"--listen", "0.0.0.0"});
  const UniqueFd relayed = everywhere.connect_tcp();
  wire::TicketQuery elsewhere{*wire::own_endpoint(relayed.get()),
                              *wire::peer_endpoint(relayed.get())};
  elsewhere.server.address[13] = 1;
  ASSERT_TRUE(send(relayed.get(), MessageType::kTicket, ticket_for(everywhere, elsewhere)).ok());
  EXPECT_NE(refusal(relayed.get()).find("another connection"), std::string::npos);
}

// A client trusts the program that receives its ticket. So a server issues no ticket for an address
// at which another program listens.
TEST(DoorTest, ThereIsNoTicketForAnAddressOfAnother) {
  const ServerProcess server;
  const UniqueFd socket = server.connect_tcp();
  const wire::TicketQuery real{*wire::own_endpoint(socket.get()),
                               *wire::peer_endpoint(socket.get())};
  wire::TicketQuery address = real, port = real;
  address.server.address[13] = 1;
  port.server.port ^= 1;
  for (const wire::TicketQuery& query : {address, port}) {
    const UniqueFd local = server.connect_local();
    ASSERT_TRUE(send(local.get(), MessageType::kTicketQuery, wire::encode(query)).ok());
    EXPECT_NE(refusal(local.get()).find("does not listen at the address"), std::string::npos);
  }
}

TEST(DoorTest, ATicketExpires) {
  const auto lifetime = std::chrono::milliseconds(300);
  const ServerProcess server({}, {"RCUDA_SERVER_HANDSHAKE_TIMEOUT=300ms"});
  // The ticket's connection is made when the ticket has expired.
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto* const generic = reinterpret_cast<const sockaddr*>(&address);
  ASSERT_EQ(::bind(socket.get(), generic, sizeof address), 0);
  address.sin_port = htons(server.port());
  const auto ticket =
      ticket_for(server, {*wire::own_endpoint(socket.get()), wire::endpoint_of(generic)});
  std::this_thread::sleep_for(lifetime);
  ASSERT_EQ(::connect(socket.get(), generic, sizeof address), 0);
  ASSERT_TRUE(send(socket.get(), MessageType::kTicket, ticket).ok());
  EXPECT_NE(refusal(socket.get()).find("expired"), std::string::npos);
}

TEST(DoorTest, TicketsAreGivenAndTakenWhereTheyProveSomething) {
  const ServerProcess server;
  const UniqueFd tcp = server.connect_tcp();
  ASSERT_TRUE(send(tcp.get(), MessageType::kTicketQuery, wire::encode(wire::TicketQuery{})).ok());
  EXPECT_NE(refusal(tcp.get()).find("only over its local socket"), std::string::npos);
  const UniqueFd local = server.connect_local();
  ASSERT_TRUE(send(local.get(), MessageType::kTicket, wire::encode(wire::Ticket{})).ok());
  EXPECT_NE(refusal(local.get()).find("only for TCP without TLS"), std::string::npos);
  for (const MessageType type : {MessageType::kTicketQuery, MessageType::kTicket}) {
    const UniqueFd malformed =
        type == MessageType::kTicket ? server.connect_tcp() : server.connect_local();
    ASSERT_TRUE(send(malformed.get(), type, {std::byte{1}}).ok());
    EXPECT_NE(refusal(malformed.get()).find("malformed"), std::string::npos);
  }
  EXPECT_TRUE(is_served(server.connect_local().get()));
}

// An Attach, a PeerHello and an ExportQuery carry a secret of a session. The server rejects
// messages without a session's secret.
TEST(DoorTest, ASecretOfASessionIsNoGuess) {
  const ServerProcess server;
  const UniqueFd attach = server.connect_tcp(), caller = server.connect_tcp();
  ASSERT_TRUE(send(attach.get(), MessageType::kAttach, wire::encode(wire::Attach{})).ok());
  EXPECT_EQ(wire::read_message(attach.get(), patience()).status().code(), Code::kUnavailable);
  ASSERT_TRUE(
      send(caller.get(), MessageType::kPeerHello, wire::encode(wire::PeerHello{.medium = "tcp"}))
          .ok());
  EXPECT_NE(refusal(caller.get()).find("does not have that session"), std::string::npos);
  const UniqueFd local = server.connect_local(), distant = server.connect_tcp();
  for (const int asking : {local.get(), distant.get()}) {
    ASSERT_TRUE(send(asking, MessageType::kExportQuery,
                     wire::encode(wire::ExportQuery{.kind = wire::ExportKind::kMemory}))
                    .ok());
  }
  EXPECT_EQ(wire::read_message(local.get(), patience()).status().code(), Code::kUnavailable);
  EXPECT_NE(refusal(distant.get()).find("answers only its own workers"), std::string::npos);
}

}  // namespace
}  // namespace rcuda::server
