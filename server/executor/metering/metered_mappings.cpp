// Entries of a metered table for physical memory that is mapped at virtual addresses, and for
// memory of other processes.
#include <cstdint>

#include "server/executor/metering/meters.h"

namespace rcuda::server {
namespace {

CUdevice device_of(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : MemoryMeter::kHost;
}

CUresult create(CUmemGenericAllocationHandle* handle, size_t bytes,
                const CUmemAllocationProp* properties, unsigned long long flags) {
  Meters& all = meters();
  const CUdevice device = device_of(properties->location);
  if (!all.memory.take(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = all.driver.cuMemCreate(handle, bytes, properties, flags);
  if (result == CUDA_SUCCESS) {
    all.physical.created(*handle, device, bytes);
  } else {
    all.memory.give_back(device, bytes);
  }
  return result;
}

// Of a size that the exporter does not tell (MeteredDriver::import_allocation()).
CUresult import_memory(CUmemGenericAllocationHandle* handle, void* shareable,
                       CUmemAllocationHandleType type) {
  const api::DriverTable& driver = meters().driver;
  CUresult result = driver.cuMemImportFromShareableHandle(handle, shareable, type);
  if (result != CUDA_SUCCESS) return result;
  CUmemAllocationProp properties{};
  result = driver.cuMemGetAllocationPropertiesFromHandle(&properties, *handle);
  if (result == CUDA_SUCCESS) {
    meters().physical.created(*handle, device_of(properties.location), 0);
  } else {
    driver.cuMemRelease(*handle);
  }
  return result;
}

CUresult release(CUmemGenericAllocationHandle handle) {
  const CUresult result = meters().driver.cuMemRelease(handle);
  if (result == CUDA_SUCCESS) meters().physical.released(handle);
  return result;
}

CUresult retain(CUmemGenericAllocationHandle* handle, void* address) {
  const CUresult result = meters().driver.cuMemRetainAllocationHandle(handle, address);
  if (result == CUDA_SUCCESS) {
    meters().physical.retained(*handle, reinterpret_cast<CUdeviceptr>(address));
  }
  return result;
}

CUresult map(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long flags) {
  Meters& all = meters();
  if (!all.physical.book_mapping(handle, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = all.driver.cuMemMap(address, bytes, offset, handle, flags);
  if (result == CUDA_SUCCESS) all.physical.mapped(address, bytes, handle);
  return result;
}

CUresult unmap(CUdeviceptr address, size_t bytes) {
  const CUresult result = meters().driver.cuMemUnmap(address, bytes);
  if (result == CUDA_SUCCESS) meters().physical.unmapped(address, bytes);
  return result;
}

// Opening the same memory again counts its references.
CUresult open_ipc(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  Meters& all = meters();
  const CUresult result = all.driver.cuIpcOpenMemHandle_v2(address, handle, flags);
  if (result != CUDA_SUCCESS) return result;
  if (auto booking = all.allocations.remove(*address)) {
    ++booking->references;
    all.allocations.put(*address, *booking);
    return CUDA_SUCCESS;
  }
  return book_imported(*address, [&] { all.driver.cuIpcCloseMemHandle(*address); });
}

CUresult close_ipc(CUdeviceptr address) {
  Meters& all = meters();
  auto booking = all.allocations.remove(address);
  const CUresult result = all.driver.cuIpcCloseMemHandle(address);
  if (!booking) return result;
  if (result == CUDA_SUCCESS && --booking->references == 0) {
    all.allocations.give(*booking);
  } else {
    all.allocations.put(address, *booking);
  }
  return result;
}

}  // namespace

void meter_mappings(api::DriverTable* table) {
  replace_entry(table->cuMemCreate, &create);
  replace_entry(table->cuMemImportFromShareableHandle, &import_memory);
  replace_entry(table->cuMemRelease, &release);
  replace_entry(table->cuMemRetainAllocationHandle, &retain);
  replace_entry(table->cuMemMap, &map);
  replace_entry(table->cuMemUnmap, &unmap);
  replace_entry(table->cuIpcOpenMemHandle_v2, &open_ipc);
  replace_entry(table->cuIpcCloseMemHandle, &close_ipc);
}

}  // namespace rcuda::server
