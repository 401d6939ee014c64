#include "common/identity/users.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rcuda::identity {
namespace {

// The number of a user that no machine has.
constexpr uid_t kNameless = 3'987'654'321;

TEST(UsersTest, NamesAndNumbers) {
  EXPECT_EQ(user_name(0), "root");
  EXPECT_EQ(*user_id("root"), 0u);
  EXPECT_EQ(user_name(kNameless), "3987654321");
  EXPECT_EQ(*user_id("3987654321"), kNameless);
  EXPECT_EQ(*user_id("0"), 0u);
  EXPECT_EQ(user_and_number(0), "root (uid 0)");
  EXPECT_EQ(user_and_number(kNameless), "uid 3987654321");
  EXPECT_EQ(group_name(0), "root");
  EXPECT_EQ(group_name(kNameless), "3987654321");
}

TEST(UsersTest, WhatIsNoUser) {
  for (const char* name :
       {"", "no such user", "-1", "+1", "01", "1x", "4294967295", "4294967296"}) {
    const Result<uid_t> uid = user_id(name);
    ASSERT_FALSE(uid.ok()) << name;
    EXPECT_EQ(uid.status().code(), Code::kNotFound);
    EXPECT_THAT(uid.status().context(), testing::HasSubstr("\"" + std::string(name) + "\""));
  }
}

}  // namespace
}  // namespace rcuda::identity
