#include "common/base/host_port.h"

#include <gtest/gtest.h>

namespace rcuda {
namespace {

struct Parsed {
  bool ok = false;
  std::string host;
  uint16_t port = 8308;
};

Parsed parse(std::string_view text, std::string_view marks = ":@") {
  Parsed parsed;
  parsed.ok = parse_host_port(text, marks, &parsed.host, &parsed.port);
  return parsed;
}

TEST(HostPort, AServerHasAHostAndPerhapsAPort) {
  const struct {
    const char* text;
    const char* host;
    uint16_t port;
  } kGood[] = {
      {"node1", "node1", 8308},        {"node1:1", "node1", 1},
      {"Node1@65535", "Node1", 65535}, {"[fe80::1]", "fe80::1", 8308},
      {"[fe80::1]:9", "fe80::1", 9},   {"[fe80::1]@9", "fe80::1", 9},
  };
  for (const auto& good : kGood) {
    const Parsed parsed = parse(good.text);
    EXPECT_TRUE(parsed.ok) << good.text;
    EXPECT_EQ(parsed.host, good.host) << good.text;
    EXPECT_EQ(parsed.port, good.port) << good.text;
  }
}

TEST(HostPort, AnythingElseIsRefused) {
  for (const char* text : {"", ":1", "@1", "[]", "[]:1", "[fe80::1", "fe80::1", "node1:", "node1:0",
                           "node1:65536", "node1:1 ", "node1:1:2", "[a]b", "a]", "a[b]:1"}) {
    EXPECT_FALSE(parse(text).ok) << text;
  }
}

TEST(HostPort, OnlyAMarkBeginsThePort) {
  EXPECT_EQ(parse("fe80::1@9", "@").host, "fe80::1");
  EXPECT_EQ(parse("fe80::1@9", "@").port, 9);
  EXPECT_FALSE(parse("[fe80::1]:9", "@").ok);
}

}  // namespace
}  // namespace rcuda
