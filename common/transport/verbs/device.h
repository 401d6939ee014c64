// Chooses the address of a verbs Link, and with it the device, port and GID. Called while a Link is
// made; nothing here blocks.
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

// This side's address for RDMA. By default it is the address of the control connection, so the
// route to the peer decides. If several adapters are on the peer's network, the one nearest to the
// GPU at `near_pci` is used (empty: no preference). RCUDA_VERBS_DEVICE names another adapter, and
// RCUDA_VERBS_GID (an index) another address of the adapter. A wrong value is an error that names
// the variable and the possible values. `why` receives the reason for the choice.
Result<Address> choose_local_address(int control_socket, const std::string& near_pci,
                                     std::string* why);

// Returns the index of an address's RoCE v2 GID on a port, or -1.
int roce_gid_index(ibv_context* context, uint8_t port, const Address& address);

// Returns a text for logs: "mlx5_0 port 1, GID 3 (10.0.0.7), RoCE v2, MTU 4096".
std::string describe(rdma_cm_id& id, const Address& address);

}  // namespace rcuda::transport::verbs
