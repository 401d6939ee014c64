#include "server/executor/host_memory/memory_origins.h"

#include <algorithm>

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

CUresult MemoryOrigins::may_import(const ExportOrigin& origin, CUdevice* device) const {
  if (origin.place == Place::kHost) return CUDA_SUCCESS;
  const auto own = std::find_if(own_.begin(), own_.end(), [&](const Own& known) {
    return origin.place == Place::kDevice && known.uuid == origin.device;
  });
  if (own != own_.end()) {
    if (device) *device = own->device;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

}  // namespace rcuda::server
