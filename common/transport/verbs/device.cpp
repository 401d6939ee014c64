#include "common/transport/verbs/device.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include "common/base/list_text.h"
#include "common/transport/verbs/pci_distance.h"

namespace rcuda::transport::verbs {
namespace {

bool is_ip(const sockaddr* address) {
  return address != nullptr && (address->sa_family == AF_INET || address->sa_family == AF_INET6);
}

// A listener for both families reports IPv4 connections with addresses like ::ffff:10.0.0.7. The
// devices list these as IPv4 addresses.
void unmap_ipv4(Address* address) {
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address->storage);
  if (address->storage.ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) return;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  std::memcpy(&v4.sin_addr, v6->sin6_addr.s6_addr + 12, sizeof v4.sin_addr);
  address->storage = {};
  std::memcpy(&address->storage, &v4, sizeof v4);
}

Address copy_of(const sockaddr* address) {
  Address copy;
  std::memcpy(&copy.storage, address,
              address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  copy.set_port(0);
  return copy;
}

// On RoCE, the GID is the IPv6 address, or the IPv4 address as a mapped IPv6 address.
ibv_gid gid_of(const Address& address) {
  ibv_gid gid{};
  if (address.storage.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    std::memcpy(gid.raw, &v6->sin6_addr, 16);
  } else {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
    gid.raw[10] = gid.raw[11] = 0xff;
    std::memcpy(gid.raw + 12, &v4->sin_addr, 4);
  }
  return gid;
}

// Returns an id for the device that rdma_cm uses for a local address. Returns null if rdma_cm uses
// no device for the address.
CmId bind(const Address& address) {
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP) != 0) return nullptr;
  CmId owned(id);
  Address copy = address;
  if (rdma_bind_addr(id, copy.get()) != 0 || id->verbs == nullptr) return nullptr;
  return owned;
}

struct InterfaceAddress {
  Address address;
  Address mask;
};

Result<std::vector<InterfaceAddress>> interface_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    return Status::from_errno(errno, "listing this host's network addresses (getifaddrs)");
  }
  const std::unique_ptr<ifaddrs, Destroy<::freeifaddrs>> owned(list);
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (!is_ip(entry->ifa_addr) || entry->ifa_netmask == nullptr) continue;
    found.push_back({copy_of(entry->ifa_addr), copy_of(entry->ifa_netmask)});
  }
  return found;
}

// Returns all RDMA devices of the kernel, with or without an address: "mlx5_0, mlx5_1".
std::string device_names() {
  int count = 0;
  const std::unique_ptr<ibv_device*, Destroy<::ibv_free_device_list>> list(
      ibv_get_device_list(&count));
  std::string names;
  for (int i = 0; list && i < count; ++i) {
    names += (i == 0 ? "" : ", ") + std::string(ibv_get_device_name(list.get()[i]));
  }
  return names;
}

Status no_such_device(const std::string& device) {
  const std::string names = device_names();
  const std::string what = "RCUDA_VERBS_DEVICE=" + device + ": ";
  if ((", " + names + ",").find(", " + device + ",") != std::string::npos) {
    return {Code::kUnsupported,
            what +
                "this device has no network address; add an address to its interface, which "
                "'rdma link' names ('ip addr add ADDRESS/24 dev INTERFACE')"};
  }
  return {Code::kUnsupported,
          what + "there is no such RDMA device; " +
              (names.empty() ? "this host has no RDMA devices" : "name one of " + names)};
}

// Returns the address of a device. With a GID index, returns the address that has this index.
Result<Address> address_of_device(const std::string& device, const char* wanted_gid) {
  RCUDA_ASSIGN_OR_RETURN(std::vector<InterfaceAddress> all, interface_addresses());
  bool device_seen = false;
  std::string gids;
  for (const InterfaceAddress& entry : all) {
    const CmId id = bind(entry.address);
    if (!id || device != ibv_get_device_name(id->verbs->device)) continue;
    if (wanted_gid == nullptr) return entry.address;
    device_seen = true;
    const int index = roce_gid_index(id->verbs, id->port_num, entry.address);
    if (index < 0) continue;
    if (std::to_string(index) == wanted_gid) return entry.address;
    append_item(&gids, std::to_string(index) + " (" + entry.address.text() + ")");
  }
  if (!device_seen) return no_such_device(device);
  return Status{
      Code::kUnsupported,
      "RCUDA_VERBS_GID=" + std::string(wanted_gid) + ": no RoCE v2 GID of " + device +
          " has this index and an IP address; " +
          (gids.empty() ? "no GID of the device has an IP address" : "choose one of " + gids)};
}

std::span<const uint8_t> raw_bytes(const Address& address) {
  if (address.storage.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    return {v6->sin6_addr.s6_addr, 16};
  }
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
  return {reinterpret_cast<const uint8_t*>(&v4->sin_addr), 4};
}

bool same_network(const InterfaceAddress& interface, const Address& peer) {
  if (interface.address.storage.ss_family != peer.storage.ss_family) return false;
  const auto own = raw_bytes(interface.address), other = raw_bytes(peer);
  const auto mask = raw_bytes(interface.mask);
  for (size_t i = 0; i < own.size(); ++i) {
    if (((own[i] ^ other[i]) & mask[i]) != 0) return false;
  }
  return true;
}

// Replaces the address of the control connection, if another adapter on the same network is nearer
// to the GPU.
void move_nearer(const Address& peer, const std::string& near_pci, Address* address,
                 std::string* why) {
  const CmId chosen = bind(*address);
  Result<std::vector<InterfaceAddress>> all = interface_addresses();
  if (!chosen || !all) return;
  std::vector<std::string> names{ibv_get_device_name(chosen->verbs->device)};
  std::vector<Address> addresses{*address};
  for (const InterfaceAddress& entry : *all) {
    if (!same_network(entry, peer)) continue;
    const CmId id = bind(entry.address);
    if (!id) continue;
    const std::string name = ibv_get_device_name(id->verbs->device);
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    names.push_back(name);
    addresses.push_back(entry.address);
  }
  *address = addresses[nearest_adapter("/", near_pci, names, why)];
}

Result<Address> address_of_socket(int socket, decltype(::getsockname)* which) {
  Address address;
  socklen_t size = sizeof address.storage;
  if (which(socket, address.get(), &size) != 0) {
    return Status::from_errno(errno, "reading an address of the control connection");
  }
  if (!is_ip(address.get())) {
    return Status{Code::kUnsupported,
                  "verbs needs a control connection over IPv4 or IPv6, but this connection has "
                  "no IP address"};
  }
  unmap_ipv4(&address);
  address.set_port(0);
  return address;
}

}  // namespace

socklen_t Address::bytes() const {
  return storage.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

void Address::set_port(uint16_t port) {
  if (storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
  }
}

std::string Address::text() const {
  char text[INET6_ADDRSTRLEN] = "?";
  if (storage.ss_family == AF_INET6) {
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr, text,
                sizeof text);
  } else {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr, text,
                sizeof text);
  }
  return text;
}

Result<Address> choose_local_address(int control_socket, const std::string& near_pci,
                                     std::string* why) {
  const auto setting = [](const char* name) {
    const char* value = ::secure_getenv(name);
    return value != nullptr && *value != '\0' ? value : nullptr;
  };
  const char* device = setting("RCUDA_VERBS_DEVICE");
  const char* gid_index = setting("RCUDA_VERBS_GID");
  if (device != nullptr) {
    *why = gid_index != nullptr ? "RCUDA_VERBS_DEVICE and RCUDA_VERBS_GID say so"
                                : "RCUDA_VERBS_DEVICE says so";
    return address_of_device(device, gid_index);
  }
  Result<Address> address = address_of_socket(control_socket, ::getsockname);
  if (!address) return address;
  if (gid_index != nullptr) {
    *why = "RCUDA_VERBS_GID says so";
    const CmId id = bind(*address);
    return id ? address_of_device(ibv_get_device_name(id->verbs->device), gid_index) : address;
  }
  *why = "the control connection runs over its address";
  if (!near_pci.empty()) {
    // A socket that is not connected (a check, not a session) has no peer.
    if (Result<Address> peer = address_of_socket(control_socket, ::getpeername); peer) {
      move_nearer(*peer, near_pci, &*address, why);
    }
  }
  return address;
}

int roce_gid_index(ibv_context* context, uint8_t port, const Address& address) {
  ibv_port_attr attributes{};
  if (ibv_query_port(context, port, &attributes) != 0) return -1;
  const ibv_gid wanted = gid_of(address);
  for (int i = 0; i < attributes.gid_tbl_len; ++i) {
    ibv_gid_entry entry{};
    if (ibv_query_gid_ex(context, port, static_cast<uint32_t>(i), &entry, 0) == 0 &&
        std::memcmp(entry.gid.raw, wanted.raw, 16) == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2) {
      return i;
    }
  }
  return -1;
}

std::string describe(rdma_cm_id& id, const Address& address) {
  std::string text = ibv_get_device_name(id.verbs->device);
  text += " port " + std::to_string(id.port_num);
  ibv_port_attr port{};
  if (ibv_query_port(id.verbs, id.port_num, &port) != 0) return text;
  if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
    if (const int index = roce_gid_index(id.verbs, id.port_num, address); index >= 0) {
      text += ", GID " + std::to_string(index);
    }
    text += " (" + address.text() + "), RoCE v2";
  } else {
    text += ", InfiniBand (" + address.text() + ")";
  }
  return text + ", MTU " + std::to_string(128 << port.active_mtu);
}

}  // namespace rcuda::transport::verbs
