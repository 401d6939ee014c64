#include "common/transport/verbs/device.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/resource.h>

namespace rcuda::transport::verbs {
namespace {

bool is_ip(const sockaddr* address) {
  return address != nullptr && (address->sa_family == AF_INET || address->sa_family == AF_INET6);
}

// A listener for both families has IPv4 connections with addresses like ::ffff:10.0.0.7; the
// devices know them as IPv4.
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

// A GID of RoCE is the address itself, IPv4 in its IPv6 form.
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

// The device that rdma_cm would use for a local address, or nothing.
CmId bind(const Address& address) {
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP) != 0) return nullptr;
  CmId owned(id);
  Address copy = address;
  if (rdma_bind_addr(id, copy.get()) != 0 || id->verbs == nullptr) return nullptr;
  return owned;
}

bool has_gid_index(ibv_context* context, uint8_t port, const Address& address, int index) {
  ibv_gid gid;
  const ibv_gid wanted = gid_of(address);
  return ibv_query_gid(context, port, index, &gid) == 0 &&
         std::memcmp(gid.raw, wanted.raw, sizeof gid.raw) == 0;
}

Result<Address> address_of_device(const std::string& device, const char* gid_index) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return Status::from_errno(errno, "getifaddrs");
  const std::unique_ptr<ifaddrs, Destroy<::freeifaddrs>> owned(list);
  bool device_seen = false;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (!is_ip(entry->ifa_addr)) continue;
    const Address address = copy_of(entry->ifa_addr);
    const CmId id = bind(address);
    if (!id || device != ibv_get_device_name(id->verbs->device)) continue;
    device_seen = true;
    if (gid_index == nullptr ||
        has_gid_index(id->verbs, id->port_num, address, std::atoi(gid_index))) {
      return address;
    }
  }
  return Status{Code::kUnsupported,
                device_seen
                    ? "RCUDA_VERBS_GID=" + std::string(gid_index) + ": no address of " + device +
                          " has this GID index (show_gids or 'rdma link' list them)"
                    : "RCUDA_VERBS_DEVICE=" + device +
                          ": no network address belongs to this device; 'ibv_devices' lists the "
                          "devices, and each needs an address on its interface"};
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

Result<Address> choose_local_address(int control_socket, std::string* why) {
  const char* device = std::getenv("RCUDA_VERBS_DEVICE");
  const char* gid_index = std::getenv("RCUDA_VERBS_GID");
  if (device != nullptr && *device != '\0') {
    *why = "RCUDA_VERBS_DEVICE says so";
    return address_of_device(device, gid_index);
  }
  Address address;
  socklen_t size = sizeof address.storage;
  if (::getsockname(control_socket, address.get(), &size) != 0) {
    return Status::from_errno(errno, "getsockname");
  }
  if (!is_ip(address.get())) {
    return Status{Code::kUnsupported, "verbs needs a control connection over IP"};
  }
  unmap_ipv4(&address);
  address.set_port(0);
  *why = "the control connection runs over its address";
  return address;
}

std::string describe(rdma_cm_id& id, const Address& address) {
  std::string text = ibv_get_device_name(id.verbs->device);
  text += " port " + std::to_string(id.port_num);
  ibv_port_attr port{};
  if (ibv_query_port(id.verbs, id.port_num, &port) != 0) return text;
  if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
    for (int i = 0; i < port.gid_tbl_len; ++i) {
      ibv_gid_entry entry{};
      const ibv_gid wanted = gid_of(address);
      if (ibv_query_gid_ex(id.verbs, id.port_num, i, &entry, 0) == 0 &&
          std::memcmp(entry.gid.raw, wanted.raw, 16) == 0 &&
          entry.gid_type == IBV_GID_TYPE_ROCE_V2) {
        text += ", GID " + std::to_string(i);
        break;
      }
    }
    text += " (" + address.text() + "), RoCE v2";
  } else {
    text += ", InfiniBand (" + address.text() + ")";
  }
  return text + ", MTU " + std::to_string(128 << port.active_mtu);
}

Status registration_error(int error, size_t bytes) {
  std::string what = "registering " + std::to_string(bytes) + " bytes of memory for RDMA";
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  if ((error == ENOMEM || error == EPERM) && limit.rlim_cur != RLIM_INFINITY) {
    return {Code::kOutOfMemory,
            what + ": the limit on locked memory (RLIMIT_MEMLOCK) is " +
                std::to_string(limit.rlim_cur) +
                " bytes; raise it (ulimit -l unlimited, 'memlock' in limits.conf, LimitMEMLOCK= of "
                "the service)"};
  }
  if (error == ENOMEM) return {Code::kOutOfMemory, what + ": out of memory"};
  return Status::from_errno(error, what);
}

}  // namespace rcuda::transport::verbs
