// The networks of a setting, and the addresses in them.
#include "server/protocol/network_list.h"

#include <string>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

namespace rcuda::server {
namespace {

class NetworkListTest : public ::testing::Test {
 protected:
  bool contains(const char* text, bool uses_loopback = false) const {
    sockaddr_in ipv4{};
    ipv4.sin_family = AF_INET;
    if (::inet_pton(AF_INET, text, &ipv4.sin_addr) == 1) {
      return list_.contains(reinterpret_cast<const sockaddr&>(ipv4), uses_loopback);
    }
    sockaddr_in6 ipv6{};
    ipv6.sin6_family = AF_INET6;
    EXPECT_EQ(::inet_pton(AF_INET6, text, &ipv6.sin6_addr), 1) << text;
    return list_.contains(reinterpret_cast<const sockaddr&>(ipv6), uses_loopback);
  }
  bool set(const char* text) { return list_.set(text, "nccl_networks", "a test").ok(); }

  config::Registry registry_{"RCUDA_SERVER_"};
  NetworkList list_{registry_, "RCUDA_SERVER_NCCL_NETWORKS", "help"};
};

TEST_F(NetworkListTest, ContainsTheAddressesOfItsNetworksOnly) {
  ASSERT_TRUE(set("10.1.0.0/15, 192.168.7.9,fd00::/9"));
  EXPECT_TRUE(contains("10.1.2.3"));
  EXPECT_FALSE(contains("10.2.0.0"));
  EXPECT_TRUE(contains("192.168.7.9"));
  EXPECT_FALSE(contains("192.168.7.8"));
  EXPECT_TRUE(contains("fd7f::1"));
  EXPECT_FALSE(contains("fd80::1"));
  EXPECT_FALSE(contains("127.0.0.1", true));
  EXPECT_TRUE(contains("::ffff:10.1.2.3")) << "the same address";
  EXPECT_EQ(list_.text(), "10.1.0.0/15, 192.168.7.9,fd00::/9");
}

TEST_F(NetworkListTest, AnyContainsAddressesOfIpOnly) {
  ASSERT_TRUE(set("any"));
  EXPECT_TRUE(contains("8.8.8.8"));
  const sockaddr other{AF_UNIX, {}};
  EXPECT_FALSE(list_.contains(other, true));
}

TEST_F(NetworkListTest, ByDefaultLoopbackDependsOnItsUse) {
  EXPECT_TRUE(contains("127.0.0.1", true));
  EXPECT_FALSE(contains("0.0.0.0", true)) << "which is this machine for connect()";
  EXPECT_FALSE(contains("203.0.113.7", true));
}

TEST_F(NetworkListTest, WhatIsNotAListIsRefused) {
  for (const char* text : {"", "10.0.0.0/33", "10.0.0/8", "10.0.0.0/", "10.0.0.0/8x", "fd00::/129",
                           "10.0.0.0/8,", "auto,any", "node1"}) {
    EXPECT_FALSE(set(text)) << text;
  }
  EXPECT_EQ(list_.text(), "auto");
}

}  // namespace
}  // namespace rcuda::server
