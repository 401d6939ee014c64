// The conclusions of the outlook.
#include "tools/rcuda-p2p/outlook.h"

#include <gtest/gtest.h>

namespace rcuda::tools {
namespace {

const Bus& bus(const char* name) {
  for (const Bus& bus : buses()) {
    if (std::string(bus.name) == name) return bus;
  }
  throw std::runtime_error(name);
}
const Network& network(const char* name) {
  for (const Network& network : networks()) {
    if (std::string(network.name) == name) return network;
  }
  throw std::runtime_error(name);
}

double gbps(const char* on_bus, const char* over, Gpudirect gpudirect, uint64_t bytes) {
  p2p::Planner planner({}, {.verbs = true, .gpudirect = gpudirect != Gpudirect::kNone},
                       outlook_model(bus(on_bus), network(over), gpudirect));
  return static_cast<double>(bytes) / planner.plan(bytes, true)->predicted_us * 1e-3;
}

// docs/p2p.md states this conclusion. If the constants of the outlook change, check both.
TEST(OutlookTest, ThePublishedConclusionHoldsWhereTheLinkIsSevenTenthsOfTheBus) {
  const uint64_t large = 256u << 20;
  const auto ahead = [&](const char* on_bus, const char* over) {
    return gbps(on_bus, over, Gpudirect::kNone, large) >
           static_cast<double>(large) / native_copy_us(bus(on_bus), large) * 1e-3;
  };
  EXPECT_TRUE(ahead("PCIe 2", "FDR"));
  EXPECT_TRUE(ahead("PCIe 3", "EDR"));
  EXPECT_TRUE(ahead("PCIe 4", "HDR"));
  EXPECT_TRUE(ahead("PCIe 5", "NDR"));
  EXPECT_FALSE(ahead("PCIe 3", "FDR"));
  EXPECT_FALSE(ahead("PCIe 4", "EDR"));
  EXPECT_FALSE(ahead("PCIe 5", "HDR"));
  EXPECT_FALSE(ahead("PCIe 6", "NDR"));
}

TEST(OutlookTest, GpudirectNeverHurtsAndHelpsMostInBetween) {
  for (const Bus& on : buses()) {
    for (const Network& over : networks()) {
      for (uint64_t bytes = 4096; bytes <= (256u << 20); bytes *= 4) {
        EXPECT_GE(gbps(on.name, over.name, Gpudirect::kSwitch, bytes) * 1.02,
                  gbps(on.name, over.name, Gpudirect::kNone, bytes));
      }
    }
  }
  EXPECT_GT(gbps("PCIe 5", "NDR", Gpudirect::kSwitch, 1u << 20),
            1.2 * gbps("PCIe 5", "NDR", Gpudirect::kNone, 1u << 20));
}

}  // namespace
}  // namespace rcuda::tools
