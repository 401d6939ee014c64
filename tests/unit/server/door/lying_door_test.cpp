// A door that an attacker controls: the test plays the door of a real daemon. The door must not get
// anything in the name of users that do not connect through it.
#include <string>

#include <gtest/gtest.h>

#include "common/base/passed_descriptors.h"
#include "tests/fuzz/door_munge.h"
#include "tests/fuzz/door_world.h"

namespace rcuda::server {
namespace {

using fuzz::DoorClient;
using fuzz::DoorWorld;
using wire::Authenticate;
using wire::MessageType;

class LyingDoorTest : public ::testing::Test {
 protected:
  void SetUp() override { world_.start(); }

  // The proof that a user's client sends on a connection with this binding.
  Authenticate by_token(const tls::Key& binding) const {
    Authenticate message;
    message.method = wire::Method::kToken;
    message.id = world_.token().id;
    std::ranges::copy(tls::token_proof(*identity::hash_of(world_.token().secret), binding),
                      message.mac);
    return message;
  }
  Authenticate by_certificate(const tls::Key& binding) const {
    Authenticate message;
    message.method = wire::Method::kCertificate;
    message.chain = world_.user().chain;
    message.signature = tls::sign(world_.user(), tls::Role::kClient, binding);
    return message;
  }
  static Authenticate by_munge(const tls::Key& binding) {
    uint8_t nonce[32];
    std::ranges::copy(binding, nonce);
    Authenticate message;
    message.method = wire::Method::kMunge;
    message.credential =
        fuzz::mint_credential(::geteuid(), wire::munge_payload(wire::MungeSide::kClient, nonce));
    return message;
  }
  std::vector<Authenticate> all(const tls::Key& binding) const {
    return {by_token(binding), by_certificate(binding), by_munge(binding)};
  }

  // A connection for which the door reports a TLS handshake with these values.
  struct Shaken : DoorClient {
    explicit Shaken(DoorWorld& world, uint8_t value = 1) : DoorClient(world, false) {
      go_through_door();
      report(value);
      EXPECT_TRUE(binding().has_value());
    }
    bool is_served(const Authenticate& proof) {
      is_known();
      send(MessageType::kAuthenticate, wire::encode(proof));
      for (int i = 0;
           i < 500 && !was_told(MessageType::kAuthenticated) && !was_told(MessageType::kRefusal);
           ++i) {
        wait_for_answer();
      }
      if (!was_told(MessageType::kAuthenticated)) return false;
      send(MessageType::kStatusQuery, {});
      return was_told(MessageType::kStatus);
    }
    bool is_refused(const Authenticate& proof) {
      return !is_served(proof) && was_told(MessageType::kRefusal);
    }
  };
  // Whether clients of other origins are served.
  bool serves_others() {
    DoorClient local(world_, true);
    local.send(MessageType::kStatusQuery, {});
    return local.was_told(MessageType::kStatus);
  }

  DoorWorld world_;
};

TEST_F(LyingDoorTest, TellsTheTruth) {
  for (size_t i = 0; i < 3; ++i) {
    Shaken client(world_);
    EXPECT_TRUE(client.is_served(all(*client.binding())[i])) << i;
  }
}

// The door repeats a proof that it has seen on an earlier connection of the user.
TEST_F(LyingDoorTest, RepeatsAProof) {
  std::vector<Authenticate> recorded;
  {
    Shaken before(world_);
    recorded = all(*before.binding());
    EXPECT_TRUE(before.is_served(recorded[0]));
  }
  for (const Authenticate& proof : recorded) EXPECT_TRUE(Shaken(world_).is_refused(proof));
}

TEST_F(LyingDoorTest, ShowsTheProofOfAnotherClientOfIts) {
  Shaken user(world_);
  for (const Authenticate& proof : all(*user.binding())) {
    EXPECT_TRUE(Shaken(world_).is_refused(proof));
  }
  EXPECT_TRUE(user.is_served(by_token(*user.binding())));
}

// The door reports values of another connection, as if it relayed the user's proof for another
// server.
TEST_F(LyingDoorTest, ReportsOtherValuesThanTheUsers) {
  Shaken one(world_, 1);
  const tls::Key others = tls::binding_of(one.challenge()->nonce, tls::Key{2});
  for (const Authenticate& proof : all(others)) {
    Shaken client(world_, 1);
    EXPECT_TRUE(client.is_refused(proof));
  }
}

TEST_F(LyingDoorTest, EachConnectionHasItsOwnNonce) {
  Shaken one(world_), two(world_);
  EXPECT_NE(*one.binding(), *two.binding());
  EXPECT_NE(one.challenge()->signature, two.challenge()->signature);
}

TEST_F(LyingDoorTest, ClaimsACertificatesNameWithoutItsKey) {
  Shaken client(world_);
  Authenticate message = by_certificate(*client.binding());
  message.signature.clear();
  EXPECT_TRUE(client.is_refused(message));
  Shaken another(world_);
  message = by_certificate(*another.binding());
  message.chain.clear();
  EXPECT_TRUE(another.is_refused(message));
}

TEST_F(LyingDoorTest, ClaimsATokenWithoutItsSecret) {
  Shaken client(world_);
  Authenticate message = by_token(*client.binding());
  message.mac[31] ^= 1;
  EXPECT_TRUE(client.is_refused(message));
}

TEST_F(LyingDoorTest, SaysNothingOfAnIdentity) {
  for (const MessageType type : {MessageType::kStatusQuery, MessageType::kHello,
                                 MessageType::kTicket, MessageType::kAttach}) {
    Shaken client(world_);
    client.send(type, std::vector<std::byte>(40));
    EXPECT_TRUE(client.was_told(MessageType::kRefusal));
  }
}

// The daemon does not decode messages that only local clients may send.
TEST_F(LyingDoorTest, AsksForAnExport) {
  Shaken client(world_);
  client.send(MessageType::kExportQuery, std::vector<std::byte>(3));
  ASSERT_TRUE(client.was_told(MessageType::kRefusal));
  const auto refusal = wire::decode<wire::Refusal>(client.told());
  ASSERT_TRUE(refusal.ok());
  EXPECT_NE(refusal->reason.find("over the network or from a container"), std::string::npos) << refusal->reason;
}

// The daemon takes one report for each connection; a second report is refused as a message.
TEST_F(LyingDoorTest, ChangesItsMind) {
  Shaken client(world_);
  const tls::Key binding = *client.binding();
  client.report(2);
  EXPECT_TRUE(client.was_told(MessageType::kRefusal));
  EXPECT_FALSE(client.is_served(by_token(binding)));
}

TEST_F(LyingDoorTest, WritesHalfAReport) {
  DoorClient client(world_, false);
  client.go_through_door();
  client.send(std::string(10, 'x'));
  EXPECT_TRUE(client.is_gone());
}

TEST_F(LyingDoorTest, SaysUnprintableThings) {
  DoorReport report;
  std::fill(std::begin(report.failure), std::end(report.failure), '\x1b');
  DoorClient client(world_, false);
  client.go_through_door();
  testing::internal::CaptureStderr();
  client.report(report);
  EXPECT_EQ(testing::internal::GetCapturedStderr().find('\x1b'), std::string::npos);
  EXPECT_TRUE(client.is_gone());
}

TEST_F(LyingDoorTest, FloodsTheDaemon) {
  Shaken client(world_);
  for (int i = 0; i < 100; ++i) {
    client.send(std::string(4096, static_cast<char>(i)));
    EXPECT_TRUE(serves_others());
  }
  EXPECT_TRUE(client.is_gone());
}

TEST_F(LyingDoorTest, Stalls) {
  DoorClient client(world_, false);
  client.go_through_door();
  Shaken half(world_);
  half.send("half a message");
  EXPECT_TRUE(serves_others());
  Shaken another(world_);
  EXPECT_TRUE(another.is_served(by_token(*another.binding())));
}

TEST_F(LyingDoorTest, Ends) {
  Shaken client(world_);
  Shaken known(world_);
  EXPECT_TRUE(known.is_served(by_token(*known.binding())));
  world_.end_door();
  world_.turn();
  EXPECT_TRUE(serves_others());
  Shaken another(world_);  // through the next door
  EXPECT_TRUE(another.is_served(by_token(*another.binding())));
}

TEST_F(LyingDoorTest, CanSendNoDescriptors) {
  DoorClient client(world_, false);
  client.go_through_door();
  const int descriptor = client.fd();
  const std::byte byte{};
  const auto sends = [&](int socket) {
    return send_with_fds(socket, {&byte, 1}, {&descriptor, 1}, Deadline()).ok();
  };
  EXPECT_FALSE(sends(world_.control()));
  const UniqueFd any(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool keeps_out = take_descriptors(any.get(), false);  // from Linux 6.16 on
  EXPECT_NE(sends(client.stream()), keeps_out);
}

}  // namespace
}  // namespace rcuda::server
