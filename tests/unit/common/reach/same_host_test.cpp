#include "common/reach/same_host.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

namespace rcuda::wire {
namespace {

Endpoint endpoint(const char* text) {
  Endpoint result;
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  if (::inet_pton(AF_INET, text, &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    result = endpoint_of(reinterpret_cast<sockaddr*>(&v4));
  } else if (::inet_pton(AF_INET6, text, &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    result = endpoint_of(reinterpret_cast<sockaddr*>(&v6));
  } else {
    ADD_FAILURE() << text;
  }
  return result;
}

bool is_here(const char* text) {
  const Endpoint it = endpoint(text);
  const Result<bool> here = any_on_this_machine({&it, 1});
  EXPECT_TRUE(here.ok()) << text;
  return here.ok() && *here;
}

TEST(SameHostTest, AnAddressOfIPv4IsTheSameInBothForms) {
  EXPECT_EQ(endpoint("192.0.2.7"), endpoint("::ffff:192.0.2.7"));
  EXPECT_TRUE(is_ipv4(endpoint("192.0.2.7")));
  EXPECT_FALSE(is_ipv4(endpoint("2001:db8::1")));
}

TEST(SameHostTest, OfLoopbackAllAddressesAreThisMachines) {
  for (const char* address : {"127.0.0.1", "127.0.1.1", "127.255.0.9", "::ffff:127.0.0.2", "::1"}) {
    EXPECT_TRUE(is_loopback(endpoint(address))) << address;
    EXPECT_TRUE(is_here(address)) << address;
  }
  // Addresses reserved for documentation; no machine has them.
  for (const char* address : {"192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", "::", "0.0.0.0"}) {
    EXPECT_FALSE(is_loopback(endpoint(address))) << address;
    EXPECT_FALSE(is_here(address)) << address;
  }
}

TEST(SameHostTest, ARefusalNamesBothUsersAndTheRemedy) {
  const Status status = not_served(8308, "ada (uid 1000)", "uid 1001");
  EXPECT_EQ(status.code(), Code::kDenied);
  for (const char* text :
       {"8308", "runs as ada (uid 1000)", "does not serve uid 1001", "run the program as"}) {
    EXPECT_NE(status.context().find(text), std::string::npos) << text;
  }
}

TEST(SameHostTest, WithoutASocketThereAreNoEndpoints) {
  EXPECT_FALSE(own_endpoint(-1).ok());
  EXPECT_FALSE(peer_endpoint(-1).ok());
}

}  // namespace
}  // namespace rcuda::wire
