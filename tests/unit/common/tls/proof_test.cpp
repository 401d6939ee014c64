// Proofs of an identity on a connection: valid proofs are accepted, all others are refused.
#include "common/tls/proof.h"

#include <gtest/gtest.h>

#include "tests/fuzz/chain_target.h"
#include "tests/fuzz/replay.h"
#include "tests/support/temp_folder.h"

namespace rcuda::tls {
namespace {

using identity::Certificate;
using test::Certified;
using test::KeyKind;
using test::make_certificate;
using test::signer;

constexpr KeyKind kAll[] = {KeyKind::kP256, KeyKind::kP384, KeyKind::kRsa, KeyKind::kEd25519};
constexpr Key kBinding{1, 2, 3}, kOther{1, 2, 4};

class ProofTest : public ::testing::Test {
 protected:
  Result<std::string> check(const Certificate& user, const std::string& signature,
                            const Key& binding = kBinding, const Certified* authority = nullptr) {
    const auto authorities = Authorities::read(
        folder_.write("users.crt", (authority ? authority : &root_)->certificate_pem()));
    EXPECT_TRUE(authorities.ok()) << authorities.status().message();
    return (*authorities)->check_client(user.chain, signature, binding);
  }
  Result<std::string> check(const Certificate& user) {
    return check(user, sign(user, Role::kClient, kBinding));
  }
  void refuses(const Result<std::string>& name, const std::string& why) {
    EXPECT_FALSE(name.ok()) << *name;
    EXPECT_NE(name.status().message().find(why), std::string::npos) << name.status().message();
  }

  test::TempFolder folder_;
  Certified root_ = make_certificate("root of users", nullptr, true);
  Certificate ada_ = signer(make_certificate("ada", &root_, false));
};

TEST_F(ProofTest, OfAllKindsOfKeys) {
  for (const KeyKind kind : kAll) {
    const Certified users = make_certificate("users", nullptr, true, kind);
    for (const KeyKind own : kAll) {
      const Certificate ada = signer(make_certificate("ada", &users, false, own));
      const auto name = check(ada, sign(ada, Role::kClient, kBinding), kBinding, &users);
      ASSERT_TRUE(name.ok()) << name.status().message();
      EXPECT_EQ(*name, "ada");
    }
  }
}

TEST_F(ProofTest, IsForOneConnectionAndOneSide) {
  const std::string mine = sign(ada_, Role::kClient, kBinding);
  EXPECT_TRUE(check(ada_, mine).ok());
  refuses(check(ada_, mine, kOther), "does not have the key");
  refuses(check(ada_, sign(ada_, Role::kServer, kBinding)), "does not have the key");
  const Certificate bob = signer(make_certificate("bob", &root_, false));
  refuses(check(bob, mine), "does not have the key");
  refuses(check(ada_, ""), "does not have the key");
}

TEST_F(ProofTest, NeedsAnAuthority) {
  const Certified other = make_certificate("root of users", nullptr, true);
  refuses(check(signer(make_certificate("ada", &other, false))), "not signed by an authority");
  refuses(check(signer(make_certificate("ada", nullptr, false))), "not signed by an authority");
  refuses(check(Certificate()), "not signed by an authority");
}

TEST_F(ProofTest, ThroughAnAuthorityOfTheChain) {
  const Certified site = make_certificate("site", &root_, true);
  const Certified ada = make_certificate("ada", &site, false);
  EXPECT_TRUE(check(signer(ada, {&site})).ok());
  refuses(check(signer(ada)), "not signed by an authority");
  // A user's certificate, which is not an authority's, cannot sign other certificates.
  const Certified user = make_certificate("user", &root_, false);
  refuses(check(signer(make_certificate("ada", &user, false), {&user})),
          "not signed by an authority");
}

// The chain is followed from the authority down, and ends at a certificate that is not signed by
// the certificate above it.
TEST_F(ProofTest, EachCertificateOfTheChainIsSigned) {
  const Certified site = make_certificate("site", &root_, true);
  const Certified ada = make_certificate("ada", &site, false);
  const Certified strange = make_certificate("strange", nullptr, true);
  refuses(check(signer(ada, {&site, &strange})), "not signed by an authority");
  refuses(check(signer(ada, {&strange, &site})), "not signed by an authority");
  Certificate odd = signer(ada, {&site});
  odd.chain.push_back({"no certificate"});
  refuses(check(odd), "not signed by an authority");
  EXPECT_TRUE(check(signer(ada, {&site, &root_})).ok());
}

TEST_F(ProofTest, OfALongCertificate) {
  const Certificate ada =
      signer(make_certificate("ada", &root_, false, KeyKind::kP256, std::string(20'000, 'x')));
  EXPECT_TRUE(check(ada).ok());
}

TEST_F(ProofTest, NamesOneUser) {
  refuses(check(signer(make_certificate("ada lovelace", &root_, false))), "does not name a user");
  refuses(check(signer(make_certificate(std::string("ada\0bob", 7), &root_, false))),
          "does not name a user");
}

TEST_F(ProofTest, OfAServer) {
  for (const KeyKind kind : kAll) {
    const Certified own = make_certificate("node1", &root_, false, kind);
    const Certificate server = signer(own);
    const std::string signature = sign(server, Role::kServer, kBinding);
    const ServerCheck pinned{.pinned = identity::fingerprint_of(own.x509.get()).value()};
    EXPECT_TRUE(check_server(server.chain, signature, kBinding, pinned).ok());
    EXPECT_FALSE(check_server(server.chain, signature, kOther, pinned).ok());
    EXPECT_FALSE(check_server(server.chain, "", kBinding, pinned).ok());
    EXPECT_FALSE(check_server({}, signature, kBinding, pinned).ok());
    const Status other =
        check_server(ada_.chain, sign(ada_, Role::kServer, kBinding), kBinding, pinned);
    EXPECT_NE(other.message().find("does not have the key that the token names"),
              std::string::npos);
  }
}

TEST_F(ProofTest, OfAServerByAnAuthority) {
  const Certificate server = signer(make_certificate("node1", &root_, false));
  const std::string signature = sign(server, Role::kServer, kBinding);
  ServerCheck check{.authorities = folder_.write("a.crt", root_.certificate_pem()),
                    .host = "node1"};
  EXPECT_TRUE(check_server(server.chain, signature, kBinding, check).ok());
  check.host = "node2";
  EXPECT_EQ(check_server(server.chain, signature, kBinding, check).code(), Code::kDenied);
  check = {
      .authorities = folder_.write("b.crt", make_certificate("b", nullptr, true).certificate_pem()),
      .host = "node1"};
  EXPECT_EQ(check_server(server.chain, signature, kBinding, check).code(), Code::kDenied);
  check.authorities = folder_.file("missing.crt");
  EXPECT_EQ(check_server(server.chain, signature, kBinding, check).code(), Code::kDenied);
}

TEST_F(ProofTest, BindingsDiffer) {
  const uint8_t one[32] = {1}, two[32] = {2};
  EXPECT_NE(binding_of(one, kBinding), binding_of(two, kBinding));
  EXPECT_NE(binding_of(one, kBinding), binding_of(one, kOther));
}

using ChainTest = fuzz::FuzzReplayTest;
TEST_F(ChainTest, OnlyWhatAnAuthorityHasSigned) {
  replay(fuzz::fuzz_chain, fuzz::chain_corpus(), 2'000);
}

}  // namespace
}  // namespace rcuda::tls
