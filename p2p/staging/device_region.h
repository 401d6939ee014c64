// Registers GPU memory with a Link whose adapter reads and writes it directly (verbs). The memory
// is registered as dma-buf, or by its address, which nvidia-peermem and softgpu's plain memory
// support. Only a probe transfer (DeviceOps::prove_gpudirect) shows which way works. Blocks for the
// registration.
#pragma once

#include <cstddef>
#include <optional>

#include "common/base/status.h"
#include "common/transport/link.h"
#include "p2p/api/device_ops.h"

namespace rcuda::p2p {

// Which side uses the memory (DeviceMemory::for_peer).
enum class For : bool { kThisSide, kPeer };

// `dma_buf`: the dma-buf of this memory; if it is nullopt, registers the memory by its address.
Result<transport::Region> expose_device_memory(const std::optional<DmaBuf>& dma_buf,
                                               transport::Link& link, DeviceAddress address,
                                               size_t bytes, For whom);
Result<transport::Region> expose_device_memory(DeviceOps& ops, transport::Link& link, int device,
                                               DeviceAddress address, size_t bytes, For whom);

}  // namespace rcuda::p2p
