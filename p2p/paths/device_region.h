// Registers GPU memory with a Link that reaches it in place (verbs): as dma-buf where the driver
// exports one, else by its address, as nvidia-peermem and softgpu's plain memory allow. Whether
// bytes really get there is for a probe transfer to show. Blocks for registration.
#pragma once

#include <cstddef>

#include "common/base/status.h"
#include "common/transport/link.h"
#include "p2p/device_ops.h"

namespace rcuda::p2p {

enum class For : bool { kThisSide, kPeer };

Result<transport::Region> expose_device_memory(DeviceOps& ops, transport::Link& link, int device,
                                               DeviceAddress address, size_t bytes, For whom);

}  // namespace rcuda::p2p
