#include "p2p/staging/device_region.h"

namespace rcuda::p2p {

Result<transport::Region> expose_device_memory(const Result<DmaBuf>& dma_buf, transport::Link& link,
                                               DeviceAddress address, size_t bytes, For whom) {
  void* const base = reinterpret_cast<void*>(address);
  const bool for_peer = whom == For::kPeer;
  Status refused = dma_buf.status();
  if (dma_buf) {
    const Result<transport::Region> region = link.expose_device(
        base, bytes,
        {.dma_buf = dma_buf->file.get(), .dma_buf_offset = dma_buf->offset, .for_peer = for_peer});
    if (region) return region;
    refused = region.status();
  }
  return link.expose_device(base, bytes, {.for_peer = for_peer})
      .with_context("dma-buf: " + refused.context() + "; by address");
}

Result<transport::Region> expose_device_memory(DeviceOps& ops, transport::Link& link, int device,
                                               DeviceAddress address, size_t bytes, For whom) {
  return expose_device_memory(ops.dma_buf(device, address, bytes), link, address, bytes, whom);
}

}  // namespace rcuda::p2p
