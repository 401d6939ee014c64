#include "common/messages/lease_messages.h"

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "common/messages/handshake.h"
#include "common/messages/message_io.h"
#include "common/reach/identify.h"
#include "common/tls/proof.h"

namespace rcuda::wire {
namespace {

const std::string kSecret = "000102030405060708090a0b0c0d0e0f";

TEST(LeaseMessagesTest, ARequestSurvivesTheWire) {
  const LeaseRequest sent{LeaseOperation::kTake, "1a2b3c4d", "slurm 1", "ada", {0, 3}, 2, true, 60};
  const Result<LeaseRequest> got = decode<LeaseRequest>(encode(sent));
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->operation, sent.operation);
  EXPECT_EQ(got->id, sent.id);
  EXPECT_EQ(got->job, sent.job);
  EXPECT_EQ(got->user, sent.user);
  EXPECT_EQ(got->devices, sent.devices);
  EXPECT_EQ(got->count, sent.count);
  EXPECT_EQ(got->shared, sent.shared);
  EXPECT_EQ(got->seconds, sent.seconds);
  LeaseRequest wrong = sent;
  for (const uint32_t operation : {0u, 5u}) {
    wrong.operation = static_cast<LeaseOperation>(operation);
    EXPECT_EQ(decode<LeaseRequest>(encode(wrong)).status().code(), Code::kProtocol);
  }
}

TEST(LeaseMessagesTest, AnAnswerSurvivesTheWire) {
  LeaseAnswer sent;
  sent.message = "done";
  sent.secret[15] = 7;
  sent.leases = {{"1a2b3c4d", "slurm 1", "ada", "root", {0, 3}, true, true, 5, 6, 7, 8, 9}, {}};
  sent.leases[0].work[Counter::kBytesFromServer] = 10;
  const std::vector<std::byte> body = encode(sent);
  const Result<LeaseAnswer> got = decode<LeaseAnswer>(body);
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(encode(*got), body);
  ASSERT_EQ(got->leases.size(), 2u);
  EXPECT_EQ(got->secret, sent.secret);
  EXPECT_EQ(got->leases[0].creator, "root");
  EXPECT_TRUE(got->leases[0].oversubscribed);
  EXPECT_EQ(got->leases[0].until, 6u);
  EXPECT_EQ(got->leases[0].sessions, 7u);
  EXPECT_EQ(got->leases[0].device_ms, 9u);
  EXPECT_EQ(got->leases[0].work.counts, sent.leases[0].work.counts);
  for (size_t bytes = 0; bytes < body.size(); ++bytes) {
    const std::vector<std::byte> cut(body.begin(), body.begin() + static_cast<ptrdiff_t>(bytes));
    EXPECT_FALSE(decode<LeaseAnswer>(cut).ok()) << bytes;
  }
}

TEST(LeaseMessagesTest, TextsOfAnAnswerDoNotControlATerminal) {
  LeaseAnswer answer;
  answer.message = "a\u009bb";
  LeaseInfo& lease = answer.leases.emplace_back();
  lease.id = lease.job = lease.user = lease.creator = "\x1b\n\u2028";
  const Result<LeaseAnswer> got = decode<LeaseAnswer>(encode(answer));
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->message, "a??b");
  const LeaseInfo& shown = got->leases[0];
  for (const std::string& text : {shown.id, shown.job, shown.user, shown.creator}) {
    EXPECT_EQ(text, "?????");
  }
}

TEST(LeaseMessagesTest, KeysAreFoundByTheirServer) {
  const auto keys = parse_lease_keys("Node1=11111111:" + kSecret +
                                     ",[fe80::1]@9000=22222222:" + kSecret + ",33333333");
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  ASSERT_EQ(keys->size(), 3u);
  EXPECT_EQ((*keys)[0].secret[15], 15);
  EXPECT_EQ((*keys)[2].secret, kNoLeaseSecret);
  EXPECT_EQ(format((*keys)[2]), "33333333");
  EXPECT_EQ(find_lease_key(*keys, "node1", kDefaultPort)->id, "11111111");
  EXPECT_EQ(find_lease_key(*keys, "FE80::1", 9000)->id, "22222222");
  EXPECT_EQ(find_lease_key(*keys, "node1", 9000)->id, "33333333");
  EXPECT_EQ(find_lease_key(*keys, "node2", kDefaultPort)->id, "33333333");
  EXPECT_FALSE(find_lease_key({}, "node1", kDefaultPort));
  for (const LeaseKey& key : *keys) {
    const auto again = parse_lease_keys(format(key));
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(format(again->front()), format(key));
  }
}

TEST(LeaseMessagesTest, ASecretGoesToTheServerThatItNamesOnly) {
  Credentials credentials;
  Hello hello;
  const auto present = [&](const std::string& lease) {
    EXPECT_TRUE(credentials.lease.set(lease, "RCUDA_LEASE", "a test").ok());
    hello = {};
    return present_lease("node1", kDefaultPort, credentials, tls::Key{9}, &hello);
  };
  EXPECT_TRUE(present("node1=11111111:" + kSecret + ",22222222").ok());
  EXPECT_EQ(hello.lease, "11111111");
  LeaseSecret secret;
  for (uint8_t i = 0; i < 16; ++i) secret[i] = i;
  EXPECT_TRUE(std::ranges::equal(hello.lease_proof, tls::lease_proof(secret, tls::Key{9})));
  EXPECT_TRUE(present("node2=11111111:" + kSecret + ",22222222").ok());
  EXPECT_EQ(hello.lease, "22222222");
  EXPECT_TRUE(std::ranges::equal(hello.lease_proof, tls::Key{}));
  const Status refused = present("node2=11111111:" + kSecret + ",22222222:" + kSecret);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_NE(refused.context().find("secret of the lease 22222222 without naming its server"), std::string::npos);
  EXPECT_EQ(refused.context().find(kSecret), std::string::npos);
}

TEST(LeaseMessagesTest, WhatIsNoKeyIsNamedWithoutIt) {
  for (const std::string& text :
       {"1111111:" + kSecret, "11111111:" + kSecret + "0", "11111111" + kSecret,
        "=11111111:" + kSecret, std::string("11111111:"), "node1@=11111111:" + kSecret,
        "node1@0=11111111:" + kSecret, "[fe80=11111111:" + kSecret, "[]=11111111:" + kSecret,
        "node1=1111111X:" + kSecret, std::string("node1=")}) {
    const Status status = parse_lease_keys("22222222:" + kSecret + "," + text).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << text;
    EXPECT_NE(status.message().find("entry 2 of RCUDA_LEASE"), std::string::npos);
    EXPECT_EQ(status.message().find(kSecret), std::string::npos) << status.message();
  }
  const std::string twice = "node1=11111111:" + kSecret + ",node1@8308=22222222:" + kSecret;
  EXPECT_FALSE(parse_lease_keys(twice).ok());
}

}  // namespace
}  // namespace rcuda::wire
