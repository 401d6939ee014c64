// The owners of sessions. Sessions of the same owner may open each other's exports.
#include "server/identity/identity.h"

#include <set>

#include <gtest/gtest.h>

namespace rcuda::server {
namespace {

Identity user(uid_t uid, const char* method) {
  Identity identity;
  identity.uid = uid;
  identity.user = "user " + std::to_string(uid);
  identity.method = method;
  identity.from = "10.0.0.7:51312";
  return identity;
}

wire::Hello on(const char* host, uint32_t claimed = 0) {
  wire::Hello hello;
  hello.host = host;
  hello.uid = claimed;
  return hello;
}

TEST(OwnerTest, IsTheUserOnTheClientHostHoweverItConnects) {
  const std::string owner = owner_of(user(1000, "local socket"), on("one"));
  EXPECT_EQ(owner_of(user(1000, "ticket"), on("one")), owner);
  EXPECT_EQ(owner_of(user(1000, "munge"), on("one", 1001)), owner) << "what it claims is ignored";
}

TEST(OwnerTest, AnotherUserHostOrMethodIsAnotherOwner) {
  Identity named = user(0, "token");
  named.uid.reset();
  named.user = "1000";
  Identity elsewhere = user(1000, "insecure");
  elsewhere.from = "10.0.0.8:51312";
  Identity two_parts = named;
  two_parts.user = "1000 4 host";
  const std::string owners[] = {
      owner_of(user(1000, "ticket"), on("one")),
      owner_of(user(1001, "ticket"), on("one")),
      owner_of(user(1000, "ticket"), on("two")),
      owner_of(named, on("one")),
      owner_of(user(1000, "insecure"), on("one")),
      owner_of(user(1000, "insecure"), on("one", 9)),
      owner_of(elsewhere, on("one")),
      owner_of(two_parts, on("one")),
      owner_of(named, on("4 host one")),
  };
  EXPECT_EQ(std::set(std::begin(owners), std::end(owners)).size(), std::size(owners));
}

// The connections of one client have different ports.
TEST(OwnerTest, AnUnknownClientIsItsAddress) {
  Identity other_port = user(1000, "insecure");
  other_port.from = "10.0.0.7:2";
  EXPECT_EQ(owner_of(other_port, on("one")), owner_of(user(1000, "insecure"), on("one")));
}

}  // namespace
}  // namespace rcuda::server
