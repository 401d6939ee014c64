#include "common/transport/verbs/errors.h"

#include <cerrno>

#include <net/if.h>

#include "common/base/units.h"
#include "common/transport/verbs/locked_memory.h"

namespace rcuda::transport::verbs {
namespace {

// Returns the network interface of a RoCE port; empty if it is unknown.
std::string interface_of(ibv_context* context, uint8_t port, int gids) {
  for (int i = 0; i < gids; ++i) {
    ibv_gid_entry entry{};
    char name[IF_NAMESIZE];
    if (ibv_query_gid_ex(context, port, static_cast<uint32_t>(i), &entry, 0) == 0 &&
        entry.ndev_ifindex != 0 && ::if_indextoname(entry.ndev_ifindex, name) != nullptr) {
      return name;
    }
  }
  return {};
}

}  // namespace

Status allocation_error(int error, const std::string& what) {
  if (error != ENOMEM && error != EPERM && error != EAGAIN) return Status::from_errno(error, what);
  if (const LockedMemoryLimit limit = locked_memory_limit(); !limit.none) {
    return {Code::kOutOfMemory,
            what + ": the limit on locked memory (RLIMIT_MEMLOCK) is " + bytes_text(limit.bytes) +
                "; raise it (ulimit -l unlimited, 'memlock' in limits.conf, LimitMEMLOCK= of "
                "the service)"};
  }
  if (error != ENOMEM) return Status::from_errno(error, what);
  return {Code::kOutOfMemory,
          what +
              ": out of memory; free memory on this host ('free -m'), raise the limit of its "
              "cgroup or 'ulimit -v', or check in 'dmesg' which resource the adapter lacks"};
}

Status registration_error(int error, size_t bytes) {
  return allocation_error(error, "registering " + exact_bytes_text(bytes) + " of memory for RDMA");
}

std::string completion_problem(ibv_wc_status status, const std::string& what) {
  std::string remedy;
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
      remedy =
          "the peer's adapter no longer answers: check the peer's host, its link and the switches "
          "('rdma link' on both sides)";
      break;
    case IBV_WC_RNR_RETRY_EXC_ERR:
      remedy = "internal error: the peer was not ready; please report it";
      break;
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
      remedy = "the peer's adapter refused the request: see the log and 'dmesg' of the peer's host";
      break;
    default:
      remedy = "this host's adapter stopped the request: see 'dmesg' and 'rdma res show qp'";
  }
  return what + ": " + ibv_wc_status_str(status) + "; " + remedy;
}

std::string device_gone(ibv_context* context) {
  return std::string("the RDMA device ") + ibv_get_device_name(context->device) +
         " was removed; new sessions can use it when its driver has added it again ('rdma link', "
         "'dmesg')";
}

std::string port_problem(ibv_context* context, uint8_t port) {
  ibv_port_attr attributes{};
  if (ibv_query_port(context, port, &attributes) != 0) return {};
  if (attributes.state == IBV_PORT_ACTIVE || attributes.state == IBV_PORT_ACTIVE_DEFER) return {};
  const std::string text =
      "port " + std::to_string(port) + " of " + ibv_get_device_name(context->device) + " is down";
  if (attributes.link_layer != IBV_LINK_LAYER_ETHERNET) {
    return text + ": check cable, switch and subnet manager ('ibstat')";
  }
  const std::string interface = interface_of(context, port, attributes.gid_tbl_len);
  return text + ": bring " + (interface.empty() ? "its interface" : interface) +
         " up ('ip link set " + (interface.empty() ? "DEV" : interface) +
         " up'), check cable and switch";
}

}  // namespace rcuda::transport::verbs
