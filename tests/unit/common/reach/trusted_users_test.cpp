#include "common/reach/trusted_users.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rcuda::wire {
namespace {

bool trusts(uid_t client, uid_t server, const std::vector<uid_t>& named = {}) {
  return check_trust("the server", server, client, named).ok();
}

TEST(TrustedUsersTest, AUserUsesItsOwnServersAndRoots) {
  EXPECT_TRUE(trusts(1000, 1000));
  EXPECT_TRUE(trusts(1000, 0));
  EXPECT_FALSE(trusts(1000, 1001));
  EXPECT_TRUE(trusts(1000, 1001, {1002, 1001}));
}

TEST(TrustedUsersTest, RootUsesNoServerOfAnotherUserUnlessItNamesThatUser) {
  EXPECT_TRUE(trusts(0, 0));
  EXPECT_FALSE(trusts(0, 1000));
  EXPECT_FALSE(trusts(0, 1000, {1001}));
  EXPECT_TRUE(trusts(0, 1000, {1000}));
}

TEST(TrustedUsersTest, TheRefusalNamesBothUsersAndTheVariable) {
  const Status status = check_trust("the server", 65534, 0, {});
  EXPECT_EQ(status.code(), Code::kDenied);
  for (const char* text : {"the server runs as nobody (uid 65534)", "a program of root (uid 0)",
                           "RCUDA_TRUST_USER=65534"}) {
    EXPECT_THAT(status.context(), testing::HasSubstr(text));
  }
}

TEST(TrustedUsersTest, TheSettingTakesNamesAndNumbers) {
  config::Registry registry{"RCUDA_"};
  TrustedUsers users(registry);
  EXPECT_TRUE(users.get().empty());
  ASSERT_TRUE(users.set("3987654321, root", "RCUDA_TRUST_USER", "the environment").ok());
  EXPECT_THAT(users.get(), testing::ElementsAre(3'987'654'321u, 0u));
  EXPECT_EQ(users.text(), "3987654321,0");
  ASSERT_TRUE(users.set("", "RCUDA_TRUST_USER", "the environment").ok());
  EXPECT_TRUE(users.get().empty());
}

TEST(TrustedUsersTest, WhatIsNoUserIsAnError) {
  config::Registry registry{"RCUDA_"};
  TrustedUsers users(registry);
  for (const char* text : {"no such user", "1000,,0", ",", "*", "-1"}) {
    const Status status = users.set(text, "RCUDA_TRUST_USER", "the environment");
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << text;
    EXPECT_THAT(status.context(), testing::HasSubstr("names or numbers of users"));
  }
}

}  // namespace
}  // namespace rcuda::wire
