// Moves the memory of MovableMemory to the host and back.
#include <set>
#include <utility>

#include "common/base/log.h"
#include "common/base/units.h"
#include "common/cuda/return_if_error.h"
#include "server/executor/movable/movable_memory.h"
#include "server/executor/objects/context_guard.h"

namespace rcuda::server {
namespace {

using Physical = MovableMemory::Physical;

bool may_write(const MovableMemory::Mapping& mapping) {
  for (const CUmemAccessDesc& access : mapping.access) {
    if (access.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
        access.location.id == mapping.physical->properties.location.id) {
      return access.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
  }
  return false;
}

}  // namespace

// Ordered by device, then by address, so that neighbours are copied together.
std::vector<std::shared_ptr<Physical>> MovableMemory::movable() const {
  std::vector<std::shared_ptr<Physical>> all;
  std::set<const Physical*> known;
  for (const Device& device : devices_) {
    const auto add = [&](const std::shared_ptr<Physical>& physical) {
      if (physical->stays || physical->properties.location.id != device.device) return;
      if (known.insert(physical.get()).second) all.push_back(physical);
    };
    for (const auto& [address, mapping] : mappings_) add(mapping.physical);
    for (const auto& [number, handle] : handles_) add(handle.physical);
  }
  return all;
}

std::map<CUdevice, uint64_t> MovableMemory::bytes() {
  end_freed();
  std::map<CUdevice, uint64_t> bytes;
  for (const auto& physical : movable()) {
    bytes[physical->properties.location.id] += physical->bytes;
  }
  return bytes;
}

CUresult MovableMemory::map_scratch(Moved* moved) {
  const Physical& physical = *moved->physical;
  RCUDA_RETURN_IF_CUDA_ERROR(driver.cuMemAddressReserve(&moved->address, physical.bytes, 0, 0, 0));
  CUresult result = driver.cuMemMap(moved->address, physical.bytes, 0, physical.handle, 0);
  if (result == CUDA_SUCCESS) {
    const CUmemAccessDesc access{physical.properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    result = driver.cuMemSetAccess(moved->address, physical.bytes, &access, 1);
    if (result != CUDA_SUCCESS) driver.cuMemUnmap(moved->address, physical.bytes);
  }
  moved->is_scratch = result == CUDA_SUCCESS;
  if (!moved->is_scratch) driver.cuMemAddressFree(moved->address, physical.bytes);
  return result;
}

void MovableMemory::unmap_scratch(const Moved& moved) {
  if (!moved.is_scratch) return;
  driver.cuMemUnmap(moved.address, moved.physical->bytes);
  driver.cuMemAddressFree(moved.address, moved.physical->bytes);
}

CUresult MovableMemory::find_places(const std::vector<std::shared_ptr<Physical>>& all,
                                    std::vector<Moved>* moved) {
  std::map<const Physical*, CUdeviceptr> places;
  for (const auto& [address, mapping] : mappings_) {
    const bool is_whole = mapping.bytes == mapping.physical->bytes;
    if (is_whole && may_write(mapping)) places[mapping.physical.get()] = address;
  }
  for (const auto& physical : all) {
    const auto place = places.find(physical.get());
    moved->push_back({physical, place == places.end() ? 0 : place->second, false});
    if (place == places.end()) RCUDA_RETURN_IF_CUDA_ERROR(map_scratch(&moved->back()));
  }
  return CUDA_SUCCESS;
}

std::vector<HostCopy::Piece> MovableMemory::pieces_of(const std::vector<Moved>& moved) const {
  std::vector<HostCopy::Piece> pieces;
  for (const Moved& one : moved) {
    const Device* const on = find_device(one.physical->properties.location.id);
    pieces.push_back(
        {one.address, one.physical->bytes, primary_context(driver, on->device), on->node});
  }
  return pieces;
}

Status MovableMemory::park() {
  end_freed();
  const std::vector<std::shared_ptr<Physical>> all = movable();
  std::vector<Moved> moved;
  const uint64_t kept = copy_.bytes();
  const CUresult found = find_places(all, &moved);
  const Status status = found == CUDA_SUCCESS ? copy_.save(pieces_of(moved))
                                              : Status::from_cuda(found, "mapping GPU memory");
  for (const Moved& one : moved) unmap_scratch(one);
  if (!status.ok()) {
    copy_.keep(kept, primary_context(driver, devices_.front().device));
    return status;
  }
  RCUDA_DEBUG("copied GPU memory to %s of the host's memory", bytes_text(copy_.bytes()).c_str());
  parked_ = all;
  release_all();
  RCUDA_DEBUG("released the GPU memory");
  return {};
}

void MovableMemory::release_all() {
  const std::set<std::shared_ptr<Physical>> away(parked_.begin(), parked_.end());
  for (const auto& [address, mapping] : mappings_) {
    if (away.contains(mapping.physical)) driver.cuMemUnmap(address, mapping.bytes);
  }
  for (const auto& physical : parked_) {
    if (physical->handle) driver.cuMemRelease(std::exchange(physical->handle, 0));
  }
}

CUresult MovableMemory::create_all() {
  for (const auto& physical : parked_) {
    RCUDA_RETURN_IF_CUDA_ERROR(
        driver.cuMemCreate(&physical->handle, physical->bytes, &physical->properties, 0));
  }
  return CUDA_SUCCESS;
}

CUresult MovableMemory::map_all() {
  const std::set<std::shared_ptr<Physical>> away(parked_.begin(), parked_.end());
  for (const auto& [address, mapping] : mappings_) {
    if (!away.contains(mapping.physical)) continue;
    RCUDA_RETURN_IF_CUDA_ERROR(
        driver.cuMemMap(address, mapping.bytes, 0, mapping.physical->handle, 0));
    if (mapping.access.empty()) continue;
    RCUDA_RETURN_IF_CUDA_ERROR(driver.cuMemSetAccess(address, mapping.bytes, mapping.access.data(),
                                                     mapping.access.size()));
  }
  return CUDA_SUCCESS;
}

Result<bool> MovableMemory::wake(uint64_t keep) {
  std::vector<Moved> moved;
  const CUresult created = create_all();
  CUresult result = created;
  if (result == CUDA_SUCCESS) result = map_all();
  if (result == CUDA_SUCCESS) result = find_places(parked_, &moved);
  if (result == CUDA_SUCCESS) RCUDA_DEBUG("created and mapped GPU memory");
  Status status = result == CUDA_SUCCESS ? copy_.restore(pieces_of(moved))
                                         : Status::from_cuda(result, "creating GPU memory again");
  for (const Moved& one : moved) unmap_scratch(one);
  if (!status.ok()) {
    release_all();
    if (created == CUDA_ERROR_OUT_OF_MEMORY) return false;
    return status;
  }
  RCUDA_DEBUG("copied the host's memory back");
  parked_.clear();
  copy_.keep(keep, primary_context(driver, devices_.front().device));
  return true;
}

}  // namespace rcuda::server
