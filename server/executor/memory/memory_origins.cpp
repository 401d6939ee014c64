#include "server/executor/memory/memory_origins.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/log.h"
#include "common/cuda/uuid_text.h"
#include "server/base/device_uuid.h"

namespace rcuda::server {

using Place = ExportOrigin::Place;

MemoryOrigins::MemoryOrigins(const api::DriverTable& driver,
                             const std::vector<SessionDevice>& devices)
    : driver_(driver) {
  for (const SessionDevice& device : devices) {
    ExportOrigin origin;
    if (of_device(device.device, &origin) == CUDA_SUCCESS) {
      own_.push_back({device.device, origin.device});
    }
  }
}

CUresult MemoryOrigins::of_device(CUdevice device, ExportOrigin* origin) const {
  *origin = {.place = Place::kDevice};
  return read_uuid(driver_, device, origin->device);
}

CUresult MemoryOrigins::of_address(CUdeviceptr address, ExportOrigin* origin) const {
  int device = 0;
  const CUresult result =
      driver_.cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
  return result == CUDA_SUCCESS ? of_device(device, origin) : result;
}

CUresult MemoryOrigins::of_allocation(CUmemGenericAllocationHandle handle,
                                      ExportOrigin* origin) const {
  CUmemAllocationProp properties{};
  const CUresult result = driver_.cuMemGetAllocationPropertiesFromHandle(&properties, handle);
  if (result != CUDA_SUCCESS) return result;
  if (properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    return of_device(properties.location.id, origin);
  }
  *origin = {.place = Place::kHost};
  return CUDA_SUCCESS;
}

CUresult MemoryOrigins::may_import(const ExportOrigin& origin, CUdevice* device) {
  if (origin.place == Place::kHost) return CUDA_SUCCESS;
  const auto own = std::find_if(own_.begin(), own_.end(), [&](const Own& known) {
    return origin.place == Place::kDevice && known.uuid == origin.device;
  });
  if (own != own_.end()) {
    if (device) *device = own->device;
    return CUDA_SUCCESS;
  }
  if (!std::exchange(warned_, true)) {
    const std::string where = origin.place == Place::kDevice
                                  ? "device " + cuda::uuid_text(origin.device)
                                  : "a device that its exporter does not tell";
    RCUDA_WARN(
        "the program asked to import memory of %s, which this session does not have: it gets "
        "CUDA_ERROR_INVALID_DEVICE. A session may import memory of its own devices only: name the "
        "device in RCUDA_DEVICES as well, under a lease that has it if it is leased",
        where.c_str());
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

}  // namespace rcuda::server
