#include "server/identity/token_store.h"

#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "common/identity/encoding.h"
#include "common/tls/proof.h"
#include "server/identity/token_uses.h"
#include "tests/support/temp_folder.h"

namespace rcuda::server {
namespace {

using identity::Token;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;
using namespace std::string_literals;

const Seconds kNow{seconds(1'750'000'000)};  // 2025-06-15T15:06:40Z

// The line of a token whose secret is all zeros.
std::string line(const std::string& id, const std::string& user, const std::string& times) {
  const identity::Hash hash = *identity::hash_of({});
  return id + " " + user + " " + identity::to_hex(hash) + " " + times + "\n";
}

constexpr tls::Key kBinding{1, 2, 3};

tls::Key mac_of(const Token& token, const tls::Key& binding = kBinding) {
  return tls::token_proof(*identity::hash_of(token.secret), binding);
}

class TokenStoreTest : public testing::Test {
 protected:
  Token create(const std::string& user, std::optional<Seconds> expires = {},
               const std::string& label = "") {
    const Result<Token> token = create_token(path_, {user, {}, expires, label}, kNow);
    EXPECT_TRUE(token.ok()) << token.status().message();
    return token.ok() ? *token : Token{};
  }
  // The user of a token after a refresh, or the reason why it is refused.
  std::string user_of(const Token& token, Seconds now = kNow) {
    const Status refreshed = store_.refresh();
    if (!refreshed.ok()) return refreshed.message();
    const Result<TokenStore::Grant> grant = store_.find(token.id, mac_of(token), kBinding, now);
    return grant.ok() ? grant->user : grant.status().message();
  }

  test::TempFolder folder_;
  const std::string path_ = folder_.file("new/tokens");
  TokenStore store_{path_};
};

TEST_F(TokenStoreTest, AMissingFileHoldsNoTokens) {
  EXPECT_TRUE(store_.refresh().ok());
  EXPECT_EQ(store_.size(), 0u);
  EXPECT_TRUE(list_tokens(path_)->empty());
  const Status revoked = revoke_tokens(path_, {"01234567"}).status();
  EXPECT_EQ(revoked.code(), Code::kNotFound);
  EXPECT_THAT(revoked.context(), HasSubstr(path_));
}

TEST_F(TokenStoreTest, ATokenStandsForItsUser) {
  const Token ada = create("ada"), bob = create("bob", kNow + seconds(10), "laptop of Bob");
  EXPECT_EQ(user_of(ada), "ada");
  EXPECT_EQ(user_of(bob), "bob");
  EXPECT_EQ(store_.size(), 2u);
  struct stat status {};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  const std::string text = folder_.read("new/tokens");
  for (const Token& token : {ada, bob}) {
    EXPECT_THAT(text, HasSubstr(token.id));
    EXPECT_THAT(text, Not(HasSubstr(identity::to_hex(token.secret))));
    EXPECT_THAT(text, Not(HasSubstr(identity::to_base64url(token.secret))));
  }
}

TEST_F(TokenStoreTest, AWrongSecretIsAsAnUnknownToken) {
  const Token ada = create("ada", kNow - seconds(10)), bob = create("bob");
  Token unknown = ada;
  unknown.id = ada.id == "00000000" || bob.id == "00000000" ? "00000001" : "00000000";
  EXPECT_THAT(user_of(unknown),
              HasSubstr("denied: the server does not know the token " + unknown.id));
  for (size_t bit = 0; bit < 8 * ada.secret.size(); bit += 7) {
    Token guess = ada;
    guess.secret[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
    EXPECT_THAT(user_of(guess), HasSubstr("denied: the server does not know the token " + ada.id));
  }
  Token mixed = bob;
  mixed.secret = ada.secret;
  EXPECT_THAT(user_of(mixed), HasSubstr("does not know"));
}

TEST_F(TokenStoreTest, AProofIsForOneConnection) {
  const Token ada = create("ada");
  ASSERT_TRUE(store_.refresh().ok());
  EXPECT_TRUE(store_.find(ada.id, mac_of(ada), kBinding, kNow).ok());
  EXPECT_EQ(store_.find(ada.id, mac_of(ada, tls::Key{4}), kBinding, kNow).status().code(),
            Code::kDenied);
}

TEST_F(TokenStoreTest, WhatIsNoIdIsNotRepeated) {
  create("ada");
  for (const char* id : {"", "0123456", "ABCDEF01", "\n\x1b[2J...."}) {
    EXPECT_EQ(user_of({id, {}, {}}), "protocol error: the client sent a malformed token id");
  }
}

TEST_F(TokenStoreTest, ATokenExpires) {
  const Token token = create("ada", kNow + seconds(10));
  EXPECT_EQ(user_of(token, kNow + seconds(9)), "ada");
  for (const int later : {10, 11, 1'000'000'000}) {
    EXPECT_THAT(
        user_of(token, kNow + seconds(later)),
        HasSubstr("denied: the token " + token.id + " of ada expired on 2025-06-15T15:06:50Z"));
  }
}

TEST_F(TokenStoreTest, ARevokedTokenIsUnknown) {
  const Token ada = create("ada"), bob = create("bob"), eve = create("eve");
  EXPECT_EQ(user_of(eve), "eve");
  ASSERT_TRUE(revoke_tokens(path_, {eve.id, ada.id, eve.id}).ok());
  EXPECT_THAT(user_of(eve), HasSubstr("does not know"));
  EXPECT_THAT(user_of(ada), HasSubstr("does not know"));
  EXPECT_EQ(user_of(bob), "bob");
}

TEST_F(TokenStoreTest, RevokesAllOrNone) {
  const Token ada = create("ada");
  for (const char* unknown : {"00000000", "", "ada"}) {
    const Status status = revoke_tokens(path_, {ada.id, unknown}).status();
    EXPECT_EQ(status.code(), Code::kNotFound);
    EXPECT_THAT(status.context(), HasSubstr("rcuda-token list"));
  }
  EXPECT_EQ(user_of(ada), "ada");
}

TEST_F(TokenStoreTest, RevokesTheTokensOfAUser) {
  const Token ada = create("ada"), bob = create("bob"), more = create("ada"), eve = create("eve");
  EXPECT_EQ(revoke_tokens(path_, {eve.id}, "adam").status().code(), Code::kNotFound);
  const Result<StoredTokens> revoked = revoke_tokens(path_, {eve.id}, "ada");
  ASSERT_TRUE(revoked.ok());
  std::vector<std::string> ids;
  for (const StoredToken& token : *revoked) ids.push_back(token.id);
  EXPECT_EQ(ids, (std::vector<std::string>{ada.id, more.id, eve.id}));
  EXPECT_EQ(list_tokens(path_)->size(), 1u);
  EXPECT_EQ(user_of(bob), "bob");
}

TEST_F(TokenStoreTest, UsesAreKeptToAMinute) {
  EXPECT_TRUE(read_token_uses(path_)->empty());
  const Token ada = create("ada"), bob = create("bob");
  TokenUses uses(path_), of_another_server(path_);
  ASSERT_TRUE(uses.note(ada.id, kNow).ok());
  ASSERT_TRUE(uses.note(ada.id, kNow + seconds(59)).ok());
  ASSERT_TRUE(of_another_server.note(bob.id, kNow + seconds(1)).ok());
  EXPECT_EQ(*read_token_uses(path_), (UseTimes{{ada.id, kNow}, {bob.id, kNow + seconds(1)}}));
  ASSERT_TRUE(uses.note(ada.id, kNow + seconds(60)).ok());
  EXPECT_EQ(read_token_uses(path_)->at(ada.id), kNow + seconds(60));
  ASSERT_TRUE(revoke_tokens(path_, {ada.id}).ok());
  ASSERT_TRUE(uses.note(bob.id, kNow + seconds(61)).ok());
  EXPECT_EQ(*read_token_uses(path_), (UseTimes{{bob.id, kNow + seconds(61)}}));
}

TEST_F(TokenStoreTest, UsesThatCannotBeRecordedAreReportedOnce) {
  const Token ada = create("ada");
  ASSERT_EQ(::mkdir((path_ + ".used").c_str(), 0700), 0);
  TokenUses uses(path_);
  EXPECT_FALSE(uses.note(ada.id, kNow).ok());
  EXPECT_TRUE(uses.note(ada.id, kNow + seconds(60)).ok());
}

TEST_F(TokenStoreTest, NoticesEachChange) {
  // Files of the same size that replace each other quickly.
  std::optional<Token> last;
  for (int i = 0; i < 20; ++i) {
    if (last) {
      ASSERT_TRUE(revoke_tokens(path_, {last->id}).ok());
    }
    const Token token = create("ada");
    EXPECT_EQ(user_of(token), "ada");
    if (last) {
      EXPECT_THAT(user_of(*last), HasSubstr("does not know"));
    }
    last = token;
  }
  std::filesystem::remove(path_);
  EXPECT_THAT(user_of(*last), HasSubstr("does not know"));
  EXPECT_EQ(user_of(create("bob")), "bob");
}

TEST_F(TokenStoreTest, AFileThatOthersCanReadIsRefusedUntilItIsPutRight) {
  const Token ada = create("ada");
  EXPECT_EQ(user_of(ada), "ada");
  for (const mode_t mode : {0640, 0602}) {
    ::chmod(path_.c_str(), mode);
    EXPECT_THAT(user_of(ada), HasSubstr("chmod 600 " + path_));
    EXPECT_EQ(store_.size(), 0u);
    EXPECT_FALSE(list_tokens(path_).ok());
    EXPECT_FALSE(create_token(path_, {"bob", {}, {}, ""}, kNow).ok());
    EXPECT_FALSE(revoke_tokens(path_, {ada.id}).ok());
    ::chmod(path_.c_str(), 0600);
    EXPECT_EQ(user_of(ada), "ada");
  }
}

TEST_F(TokenStoreTest, ADamagedLineGrantsNothingAndTheOthersHold) {
  const Token ada = create("ada"), bob = create("bob");
  const std::string text = folder_.read("new/tokens");
  const size_t begin = text.find(bob.id), end = text.find('\n', begin);
  // Cuts any number of characters off the line of Bob's token. The token is accepted only if all
  // that it grants remains.
  for (size_t cut = 1; cut <= end - begin; ++cut) {
    folder_.write("new/tokens", text.substr(0, end - cut) + text.substr(end));
    testing::internal::CaptureStderr();
    EXPECT_EQ(user_of(ada), "ada") << cut;
    EXPECT_EQ(user_of(ada), "ada") << cut;
    const std::string log = testing::internal::GetCapturedStderr();
    const std::string found = user_of(bob);
    if (cut == end - begin) {
      EXPECT_EQ(log, "");  // an empty line
    } else {
      const std::string named = path_ + ": line 4: not a token: ";
      ASSERT_THAT(log, HasSubstr(named));
      EXPECT_EQ(log.find(named), log.rfind(named)) << "once";
    }
    EXPECT_THAT(found, HasSubstr("does not know the token " + bob.id)) << cut;
    EXPECT_EQ(store_.size(), 1u);
    if (cut != end - begin) {
      EXPECT_FALSE(create_token(path_, {"eve", {}, {}, ""}, kNow).ok());
    }
    const std::string damaged = folder_.read("new/tokens");
    ASSERT_TRUE(revoke_tokens(path_, {ada.id}).ok()) << cut;
    const size_t of_ada = damaged.find(ada.id);
    EXPECT_EQ(folder_.read("new/tokens"), damaged.substr(0, of_ada) + damaged.substr(begin));
  }
  folder_.write("new/tokens", text);
  EXPECT_EQ(user_of(bob), "bob");
}

TEST_F(TokenStoreTest, AFileWithoutAReadableTokenIsRefused) {
  const Token ada = create("ada");
  const std::string text = folder_.read("new/tokens");
  folder_.write("new/tokens", "damaged\nas well\n");
  for (int i = 0; i < 2; ++i) EXPECT_THAT(user_of(ada), HasSubstr(path_ + ": line 1: not a token"));
  EXPECT_EQ(store_.size(), 0u);
  folder_.write("new/tokens", text);
  EXPECT_EQ(user_of(ada), "ada");
}

TEST_F(TokenStoreTest, WritersDoNotLoseEachOthersTokens) {
  constexpr int kThreads = 8, kEach = 5;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < kEach; ++k) create("ada");
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::string> ids;
  const Result<StoredTokens> tokens = list_tokens(path_);
  ASSERT_TRUE(tokens.ok());
  for (const StoredToken& token : *tokens) ids.insert(token.id);
  EXPECT_EQ(ids.size(), size_t{kThreads * kEach});
}

TEST_F(TokenStoreTest, WhatCouldNotBeReadAgainIsNotWritten) {
  const Token ada = create("ada", {}, "one");
  const std::string before = folder_.read("new/tokens");
  for (const NewToken& wanted : std::initializer_list<NewToken>{
           {"", {}, {}, ""},
           {"a b", {}, {}, ""},
           {"ada\n", {}, {}, ""},
           {"ada", {}, {}, "two\nlines"},
           {"ada", {}, {}, "\x1b[2J"},
           {"ada", {}, {}, "\u202e turns the text"},
           {"ada", {}, {}, "\x9b of one byte"},
           {"ada", {}, {}, "role:operator mine"},
           {"ada", {}, Seconds(seconds(253'402'300'800)), ""},  // the year 10000
       }) {
    const Result<Token> token = create_token(path_, wanted, kNow);
    ASSERT_FALSE(token.ok()) << wanted.user << wanted.label;
    EXPECT_EQ(token.status().code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(folder_.read("new/tokens"), before);
  EXPECT_EQ(user_of(create("ada", Seconds(seconds(253'402'300'799)), " ü # label ")), "ada");
  EXPECT_EQ(list_tokens(path_)->back().label, " ü # label ");
}

TEST(StoredTokensTest, Text) {
  const std::string text =
      "# comment\n\n" + line("01234567", "ada", "2025-01-31T12:00:00Z never") +
      line("89abcdef", "DOMAIN\\bob", "2025-01-31T12:00:01Z 2026-12-31T23:59:59Z a label");
  const Result<StoredTokens> tokens = parse_tokens(text);
  ASSERT_TRUE(tokens.ok()) << tokens.status().message();
  ASSERT_EQ(tokens->size(), 2u);
  EXPECT_EQ((*tokens)[0].user, "ada");
  EXPECT_EQ((*tokens)[0].created.time_since_epoch().count(), 1'738'324'800);
  EXPECT_FALSE((*tokens)[0].expires.has_value());
  EXPECT_EQ((*tokens)[0].label, "");
  EXPECT_EQ((*tokens)[1].user, "DOMAIN\\bob");
  EXPECT_EQ((*tokens)[1].expires->time_since_epoch().count(), 1'798'761'599);
  EXPECT_EQ((*tokens)[1].label, "a label");
  EXPECT_EQ(*parse_tokens(format_tokens(*tokens)), *tokens);
}

TEST_F(TokenStoreTest, ATokenHasRoles) {
  Roles both = Role::kOperator;
  both.add(Role::kSession);
  for (const Roles& roles : {Roles(Role::kSession), Roles(Role::kObserver), both}) {
    const Result<Token> token =
        create_token(path_, {"ada", {}, {}, "role:operator is its label"s.substr(5), roles}, kNow);
    ASSERT_TRUE(token.ok() && store_.refresh().ok());
    const Result<TokenStore::Grant> grant = store_.find(token->id, mac_of(*token), kBinding, kNow);
    ASSERT_TRUE(grant.ok());
    EXPECT_EQ(grant->roles, roles);
    EXPECT_EQ(list_tokens(path_)->back().label, "operator is its label");
  }
  EXPECT_THAT(folder_.read("new/tokens"), HasSubstr(" role:session,operator never operator is"));
}

TEST(StoredTokensTest, ALineWithoutItsEndIsNoTokenForSessions) {
  std::string text = line("01234567", "ada", "2025-01-31T12:00:00Z never");
  StoredTokens tokens = *parse_tokens(text);
  tokens[0].roles = Role::kObserver;
  text = format_tokens(tokens);
  text.pop_back();
  EXPECT_EQ(*parse_tokens(text), tokens);
  while (text.back() != '\n') {
    text.pop_back();
    const Result<StoredTokens> cut = parse_tokens(text);
    EXPECT_TRUE(!cut.ok() || cut->empty()) << text;
  }
  EXPECT_EQ(*parse_tokens(line("01234567", "ada", "2025-01-31T12:00:00Z never role:observer")),
            tokens)
      << "an older file";
}

TEST(RolesTest, Texts) {
  for (const char* text : {"session", "observer", "operator", "session,observer,operator"}) {
    const Result<Roles> roles = Roles::parse(text);
    ASSERT_TRUE(roles.ok()) << text;
    EXPECT_EQ(roles->text(), text);
  }
  EXPECT_EQ(Roles::parse("operator,session,operator")->text(), "session,operator");
  for (const char* text : {"", "Session", "root", "session,", ",session", "session observer"}) {
    EXPECT_EQ(Roles::parse(text).status().code(), Code::kInvalidArgument) << text;
  }
}

TEST(StoredTokensTest, ALineWithoutRolesIsForSessions) {
  const std::string before = line("01234567", "root", "2025-01-31T12:00:00Z never exporter");
  EXPECT_EQ((*parse_tokens(before))[0].roles, Roles(Role::kSession));
  EXPECT_EQ((*parse_tokens(before))[0].label, "exporter");
}

TEST(StoredTokensTest, DamagedLines) {
  const std::string good = line("01234567", "ada", "2025-01-31T12:00:00Z never");
  ASSERT_TRUE(parse_tokens(good).ok());
  for (const std::string& bad : {
           std::string(" \n"),
           " " + good,
           good.substr(0, 8),
           good.substr(0, 40),
           line("0123456x", "ada", "2025-01-31T12:00:00Z never"),
           line("01234567", "", "2025-01-31T12:00:00Z never"),
           line("01234567", "ada", ""),
           line("01234567", "ada", "2025-01-31T12:00:00Z"),
           line("01234567", "ada", "2025-02-31T12:00:00Z never"),
           line("01234567", "ada", "2025-1-31T12:00:00Z never"),
           line("01234567", "ada", "2025-01-31T12:00:00 never"),
           line("01234567", "ada", "2025-01-31T12:00:00Z Never"),
           line("01234567", "ada", "2025-01-31T12:00:00Z 2025-01-31"),
           line("01234567", "ada", "2025-01-31T12:00:00Z never \t"),
           line("01234567", "ada", "2025-01-31T12:00:00Z never\r"),
           line("01234567", "ada", "2025-01-31T12:00:00Z never role:"),
           line("01234567", "ada", "2025-01-31T12:00:00Z never role:admin a label"),
       }) {
    const Result<StoredTokens> tokens = parse_tokens("#\n" + bad);
    ASSERT_FALSE(tokens.ok()) << bad;
    EXPECT_EQ(tokens.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(tokens.status().context(), HasSubstr("line 2: not a token"));
  }
}

}  // namespace
}  // namespace rcuda::server
