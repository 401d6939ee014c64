// GPU memory as a file descriptor that other drivers of this host understand. Any thread with the
// memory's context current; blocks as the driver does.
#pragma once

#include <cstddef>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/base/status.h"
#include "p2p/device_ops.h"

namespace rcuda::server {

// kUnsupported where driver, kernel or the kind of memory cannot (and always on softgpu).
Result<p2p::DmaBuf> export_dma_buf(const api::DriverTable& driver, CUdeviceptr address,
                                   size_t bytes);

}  // namespace rcuda::server
