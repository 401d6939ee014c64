#include "client/pool/pci_address.h"

#include <set>

#include <gtest/gtest.h>

namespace rcuda::client {
namespace {

TEST(PciAddressTest, Parsing) {
  EXPECT_EQ(parse_pci_address("0000ABCD:FE:1F.0"), (PciAddress{0xabcd, 0xfe, 0x1f}));
  EXPECT_EQ(parse_pci_address("0001:10:00.0"), (PciAddress{1, 0x10, 0}));
  EXPECT_EQ(parse_pci_address("10:02"), (PciAddress{0, 0x10, 2}));
  EXPECT_EQ(parse_pci_address(""), std::nullopt);
  EXPECT_EQ(parse_pci_address("nothing"), std::nullopt);
}

TEST(PciAddressTest, ATakenAddressGetsTheFirstFreeDomain) {
  std::set<std::string> known;
  const auto taken = [&](const std::string& address) { return known.count(address) != 0; };
  const std::string address = "0000:10:00.0";
  EXPECT_EQ(other_pci_domain(address, taken), std::nullopt);
  known.insert(address);
  EXPECT_EQ(other_pci_domain(address, taken), 1);
  EXPECT_EQ(with_pci_domain(address, 1), "0001:10:00.0");
  known.insert("0001:10:00.0");
  EXPECT_EQ(other_pci_domain(address, taken), 2);
  EXPECT_EQ(other_pci_domain("0000:11:00.0", taken), std::nullopt);
}

}  // namespace
}  // namespace rcuda::client
