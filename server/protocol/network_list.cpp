#include "server/protocol/network_list.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include "common/base/parse_number.h"

namespace rcuda::server {
namespace {

using Bytes = std::array<uint8_t, 16>;

constexpr unsigned kMapped = 96;  // bits before the IPv4 address in an IPv4-mapped address

Bytes mapped(const void* ipv4) {
  Bytes bytes{};
  bytes[10] = bytes[11] = 0xff;
  std::memcpy(&bytes[12], ipv4, 4);
  return bytes;
}

unsigned bits_of(const sockaddr& mask) {
  const auto count = [](const void* data, size_t bytes) {
    unsigned bits = 0;
    const auto* const at = static_cast<const uint8_t*>(data);
    for (size_t i = 0; i < bytes; ++i) bits += static_cast<unsigned>(std::popcount(at[i]));
    return bits;
  };
  if (mask.sa_family == AF_INET) {
    return kMapped + count(&reinterpret_cast<const sockaddr_in&>(mask).sin_addr, 4);
  }
  return count(&reinterpret_cast<const sockaddr_in6&>(mask).sin6_addr, 16);
}

}  // namespace

bool NetworkList::Network::contains(const Bytes& other) const {
  for (unsigned bit = 0; bit < bits; ++bit) {
    const auto mask = static_cast<uint8_t>(0x80u >> (bit % 8));
    if ((address[bit / 8] ^ other[bit / 8]) & mask) return false;
  }
  return true;
}

bool NetworkList::read(const sockaddr& address, Bytes* bytes) {
  if (address.sa_family == AF_INET) {
    *bytes = mapped(&reinterpret_cast<const sockaddr_in&>(address).sin_addr);
    return true;
  }
  if (address.sa_family != AF_INET6) return false;
  std::memcpy(bytes->data(), &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, 16);
  return true;
}

// Parses "10.0.0.0/8", "fd00::/8", or an address without a length.
bool NetworkList::parse_one(std::string_view text, Network* network) {
  const size_t slash = text.find('/');
  const std::string address(text.substr(0, slash));
  in_addr ipv4{};
  unsigned most = 128, before = 0;
  if (::inet_pton(AF_INET, address.c_str(), &ipv4) == 1) {
    network->address = mapped(&ipv4);
    most = 32;
    before = kMapped;
  } else if (::inet_pton(AF_INET6, address.c_str(), network->address.data()) != 1) {
    return false;
  }
  unsigned bits = most;
  if (slash != std::string_view::npos) {
    if (!parse_number(text.substr(slash + 1), &bits) || bits > most) return false;
  }
  network->bits = before + bits;
  return true;
}

bool NetworkList::parse(std::string_view text) {
  std::vector<Network> networks;
  if (text != "auto" && text != "any") {
    for (std::string_view rest = text;;) {
      const size_t comma = rest.find(',');
      std::string_view one = rest.substr(0, comma);
      while (one.starts_with(' ')) one.remove_prefix(1);
      while (one.ends_with(' ')) one.remove_suffix(1);
      if (!parse_one(one, &networks.emplace_back())) return false;
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
  }
  text_ = text;
  networks_ = std::move(networks);
  return true;
}

std::vector<NetworkList::Network> NetworkList::own_networks(bool uses_loopback) {
  std::vector<Network> networks, loopback;
  ifaddrs* interfaces = nullptr;
  if (::getifaddrs(&interfaces) != 0) return networks;
  for (const ifaddrs* one = interfaces; one; one = one->ifa_next) {
    Network network;
    if (!one->ifa_addr || !one->ifa_netmask || !(one->ifa_flags & IFF_UP) ||
        !read(*one->ifa_addr, &network.address)) {
      continue;
    }
    network.bits = bits_of(*one->ifa_netmask);
    (one->ifa_flags & IFF_LOOPBACK ? loopback : networks).push_back(network);
  }
  ::freeifaddrs(interfaces);
  // NCCL uses the loopback interface if the machine has no other interface.
  if (uses_loopback || networks.empty())
    networks.insert(networks.end(), loopback.begin(), loopback.end());
  return networks;
}

bool NetworkList::contains(const sockaddr& address, bool uses_loopback) const {
  Bytes bytes{};
  if (!read(address, &bytes)) return false;
  if (text_ == "any") return true;
  const std::vector<Network> own = text_ == "auto" ? own_networks(uses_loopback) : networks_;
  return std::ranges::any_of(own, [&](const Network& one) { return one.contains(bytes); });
}

}  // namespace rcuda::server
