#include "p2p/staging/device_region.h"

namespace rcuda::p2p {

Result<transport::Region> expose_device_memory(const std::optional<DmaBuf>& dma_buf,
                                               transport::Link& link, DeviceAddress address,
                                               size_t bytes, For whom) {
  transport::DeviceMemory memory{.for_peer = whom == For::kPeer};
  if (dma_buf) {
    memory.dma_buf = dma_buf->file.get();
    memory.dma_buf_offset = dma_buf->offset;
  }
  return link.expose_device(reinterpret_cast<void*>(address), bytes, memory);
}

Result<transport::Region> expose_device_memory(DeviceOps& ops, transport::Link& link, int device,
                                               DeviceAddress address, size_t bytes, For whom) {
  RCUDA_ASSIGN_OR_RETURN(const std::optional<DmaBuf> dma_buf, ops.dma_buf(device, address, bytes));
  return expose_device_memory(dma_buf, link, address, bytes, whom);
}

}  // namespace rcuda::p2p
