// The UUID of a device, from whichever function the driver has.
//
// Threads: any. Blocking: none.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include <cuda.h>

#include "api/driver_table.h"

namespace rcuda::server {

inline CUresult read_uuid(const api::DriverTable& driver, CUdevice device,
                          std::span<uint8_t, 16> bytes) {
  const auto get_uuid =
      driver.cuDeviceGetUuid_v2 ? driver.cuDeviceGetUuid_v2 : driver.cuDeviceGetUuid;
  if (!get_uuid) return CUDA_ERROR_NOT_SUPPORTED;
  CUuuid uuid{};
  const CUresult result = get_uuid(&uuid, device);
  if (result == CUDA_SUCCESS) std::memcpy(bytes.data(), uuid.bytes, sizeof uuid.bytes);
  return result;
}

}  // namespace rcuda::server
