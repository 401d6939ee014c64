// The UUID of a device.
//
// Threads: any. Blocking: none.
#pragma once

#include <cstdint>
#include <span>

#include <cuda.h>

#include "api/driver_table.h"

namespace rcuda::server {

inline CUresult read_uuid(const api::DriverTable& driver, CUdevice device,
                          std::span<uint8_t, sizeof(CUuuid)> bytes) {
  return driver.cuDeviceGetUuid_v2(reinterpret_cast<CUuuid*>(bytes.data()), device);
}

}  // namespace rcuda::server
