// Support for RDMA adapters that access GPU memory: the memory's dma-buf (a file descriptor that
// other drivers of this host understand), and a check that the GPU orders the adapters' writes.
#pragma once

#include <cstddef>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/base/status.h"
#include "p2p/api/device_ops.h"

namespace rcuda::server {

// Exports the pages of the memory. kUnsupported if the driver, the kernel or this kind of memory
// does not support dma-buf (always on softgpu). Call it on any thread, with the memory's context
// current. Blocks as the driver does.
Result<p2p::DmaBuf> export_dma_buf(const api::DriverTable& driver, CUdeviceptr address,
                                   size_t bytes);

// Whether the GPU orders an adapter's writes before work that the GPU begins afterwards, so that
// this work sees the written data.
bool orders_adapter_writes(const api::DriverTable& driver, CUdevice device);
inline constexpr char kWritesOutOfOrder[] =
    "kernels of this GPU may start before an adapter's earlier writes are visible";

}  // namespace rcuda::server
