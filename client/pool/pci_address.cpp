#include "client/pool/pci_address.h"

#include <cstdio>

namespace rcuda::client {

std::optional<PciAddress> parse_pci_address(const std::string& text) {
  PciAddress address;
  if (std::sscanf(text.c_str(), "%x:%x:%x", &address.domain, &address.bus, &address.slot) == 3) {
    return address;
  }
  address.domain = 0;
  if (std::sscanf(text.c_str(), "%x:%x", &address.bus, &address.slot) == 2) return address;
  return std::nullopt;
}

std::optional<int> other_pci_domain(const std::string& address,
                                    const std::function<bool(const std::string&)>& taken) {
  if (address.find(':') == std::string::npos || !taken(address)) return std::nullopt;
  for (int domain = 1; domain < 0x10000; ++domain) {
    if (!taken(with_pci_domain(address, domain))) return domain;
  }
  return std::nullopt;
}

std::string with_pci_domain(const std::string& address, int domain) {
  char text[16];
  std::snprintf(text, sizeof text, "%04x", static_cast<unsigned>(domain));
  return text + address.substr(address.find(':'));
}

}  // namespace rcuda::client
