// PCI addresses of the pool's GPUs. GPUs of different servers may have the same address, and
// applications distinguish devices by this address.
//
// Pure functions; any thread. Nothing blocks.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace rcuda::client {

struct PciAddress {
  unsigned domain = 0, bus = 0, slot = 0;
  bool operator==(const PciAddress&) const = default;
};

// Parses [domain:]bus:slot[.function], all hexadecimal.
std::optional<PciAddress> parse_pci_address(const std::string& text);

// Returns a PCI domain that makes the device's address unique. Returns nullopt if `address` is not
// taken, or if no domain is free. `address`: as the driver writes it ("0000:10:00.0"). `taken`:
// whether another device of the pool has an address.
std::optional<int> other_pci_domain(const std::string& address,
                                    const std::function<bool(const std::string&)>& taken);
std::string with_pci_domain(const std::string& address, int domain);

}  // namespace rcuda::client
