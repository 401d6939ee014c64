// What adapters need of a GPU to reach its memory: a file descriptor of it that other drivers of
// this host understand, and an order of their writes.
#pragma once

#include <cstddef>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/base/status.h"
#include "p2p/device_ops.h"

namespace rcuda::server {

// kUnsupported where driver, kernel or the kind of memory cannot (and always on softgpu). Any
// thread with the memory's context current; blocks as the driver does.
Result<p2p::DmaBuf> export_dma_buf(const api::DriverTable& driver, CUdeviceptr address,
                                   size_t bytes);

// Whether what an adapter has written is there for what the GPU begins afterwards.
bool orders_adapter_writes(const api::DriverTable& driver, CUdevice device);
inline constexpr char kWritesOutOfOrder[] =
    "this GPU does not order an adapter's writes before its kernels";

}  // namespace rcuda::server
