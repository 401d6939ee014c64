#include "server/executor/host_memory/opened_memory.h"

#include <iterator>

#include "common/cuda/return_if_error.h"

namespace rcuda::server {

OpenedMemory::OpenedMemory(Meters& meters, const std::vector<SessionDevice>& devices)
    : meters_(meters), devices_(devices) {}

// Leaves out devices that cannot reach the memory: the driver would refuse to give them access.
std::vector<CUmemAccessDesc> OpenedMemory::access_to(CUdevice device) const {
  std::vector<CUmemAccessDesc> access;
  for (const SessionDevice& from : devices_) {
    int can = from.device == device;
    if (!can) (void)meters_.driver.cuDeviceCanAccessPeer(&can, from.device, device);
    if (!can) continue;
    access.push_back(
        {{CU_MEM_LOCATION_TYPE_DEVICE, {from.device}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  }
  return access;
}

CUresult OpenedMemory::map(const Opened& opened, CUdevice device, CUdeviceptr* address) {
  const api::DriverTable& driver = meters_.table();
  const std::vector<CUmemAccessDesc> access = access_to(device);
  const uint64_t bytes = opened.bytes;
  RCUDA_RETURN_IF_CUDA_ERROR(driver.cuMemAddressReserve(address, bytes, 0, 0, 0));
  CUresult result = driver.cuMemMap(*address, bytes, 0, opened.handle, 0);
  if (result == CUDA_SUCCESS) {
    result = driver.cuMemSetAccess(*address, bytes, access.data(), access.size());
    if (result != CUDA_SUCCESS) driver.cuMemUnmap(*address, bytes);
  }
  if (result != CUDA_SUCCESS) driver.cuMemAddressFree(*address, bytes);
  return result;
}

CUresult OpenedMemory::open(const wire::ExportNumber& secret, UniqueFd descriptor,
                            const ExportOrigin& origin, CUdevice device, CUdeviceptr* address) {
  for (auto& [known, opened] : opened_) {
    if (opened.secret != secret) continue;
    ++opened.count;
    *address = known;
    return CUDA_SUCCESS;
  }
  Opened made{.secret = secret, .bytes = origin.bytes};
  RCUDA_RETURN_IF_CUDA_ERROR(meters_.driver.cuCtxGetCurrent(&made.context));
  RCUDA_RETURN_IF_CUDA_ERROR(meters_.import_allocation(
      &made.handle, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor.get())), origin,
      device));
  const CUresult result = map(made, device, address);
  if (result == CUDA_SUCCESS) {
    opened_[*address] = made;
  } else {
    meters_.table().cuMemRelease(made.handle);
  }
  return result;
}

void OpenedMemory::unmap(std::map<CUdeviceptr, Opened>::iterator opened) {
  const api::DriverTable& driver = meters_.table();
  driver.cuMemUnmap(opened->first, opened->second.bytes);
  driver.cuMemRelease(opened->second.handle);
  driver.cuMemAddressFree(opened->first, opened->second.bytes);
  opened_.erase(opened);
}

CUresult OpenedMemory::close(CUdeviceptr address) {
  const auto found = opened_.find(address);
  if (found == opened_.end()) return CUDA_ERROR_INVALID_VALUE;
  RCUDA_RETURN_IF_CUDA_ERROR(meters_.driver.cuCtxSynchronize());
  if (--found->second.count == 0) unmap(found);
  return CUDA_SUCCESS;
}

void OpenedMemory::end_context(CUcontext context) {
  for (auto opened = opened_.begin(); opened != opened_.end();) {
    const auto next = std::next(opened);
    if (opened->second.context == context) unmap(opened);
    opened = next;
  }
}

}  // namespace rcuda::server
