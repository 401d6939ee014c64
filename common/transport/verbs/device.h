// Which address, and with it which device, port and GID, a verbs Link uses; and what the errors of
// rdma-core mean to an administrator. Called while a Link is made; nothing here blocks.
#pragma once

#include <string>

#include <sys/socket.h>

#include "common/base/status.h"
#include "common/transport/verbs/handles.h"

namespace rcuda::transport::verbs {

struct Address {
  sockaddr_storage storage{};
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  socklen_t bytes() const;
  void set_port(uint16_t port);
  std::string text() const;
};

// This side's address for RDMA: that of the control connection, so that the route to the peer
// decides; or, with RCUDA_VERBS_DEVICE (and RCUDA_VERBS_GID, an index), one of that device's. `why`
// says which in a few words.
Result<Address> choose_local_address(int control_socket, std::string* why);

// "mlx5_0 port 1, GID 3 (10.0.0.7), RoCE v2, MTU 4096"
std::string describe(rdma_cm_id& id, const Address& address);

// Registration of memory failed with `error`: says why and how to mend it.
Status registration_error(int error, size_t bytes);

}  // namespace rcuda::transport::verbs
