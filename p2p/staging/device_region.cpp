#include "p2p/staging/device_region.h"

#include "common/base/log.h"

namespace rcuda::p2p {

Result<transport::Region> expose_device_memory(DeviceOps& ops, transport::Link& link, int device,
                                               DeviceAddress address, size_t bytes, For whom) {
  void* const base = reinterpret_cast<void*>(address);
  const bool for_peer = whom == For::kPeer;
  if (const Result<DmaBuf> exported = ops.dma_buf(device, address, bytes)) {
    const Result<transport::Region> region = link.expose_device(base, bytes,
                                                                {.dma_buf = exported->file.get(),
                                                                 .dma_buf_offset = exported->offset,
                                                                 .for_peer = for_peer});
    if (region) return region;
    RCUDA_DEBUG("%s; trying without dma-buf", region.status().message().c_str());
  }
  return link.expose_device(base, bytes, {.for_peer = for_peer});
}

}  // namespace rcuda::p2p
