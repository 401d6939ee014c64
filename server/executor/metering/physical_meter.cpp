#include "server/executor/metering/physical_meter.h"

#include <iterator>

namespace rcuda::server {

void PhysicalMeter::created(CUmemGenericAllocationHandle handle, CUdevice device, uint64_t bytes) {
  Handle& known = handles_[handle];
  // A driver may return the handle that it has for the same memory.
  if (!known.memory) {
    known.memory.reset(new Memory{meter_, device, bytes, bytes == 0});
  }
  ++known.references;
}

void PhysicalMeter::retained(CUmemGenericAllocationHandle handle, CUdeviceptr mapped_at) {
  auto after = mappings_.upper_bound(mapped_at);
  if (after == mappings_.begin()) return;
  const auto& [address, mapping] = *std::prev(after);
  if (mapped_at - address >= mapping.bytes) return;
  Handle& known = handles_[handle];
  known.memory = mapping.memory;
  ++known.references;
}

void PhysicalMeter::released(CUmemGenericAllocationHandle handle) {
  const auto found = handles_.find(handle);
  if (found != handles_.end() && --found->second.references == 0) handles_.erase(found);
}

bool PhysicalMeter::book_mapping(CUmemGenericAllocationHandle handle, uint64_t bytes) {
  const auto found = handles_.find(handle);
  if (found == handles_.end()) return true;
  Memory& memory = *found->second.memory;
  if (!memory.imported || bytes <= memory.bytes) return true;
  if (!meter_.take(memory.device, bytes - memory.bytes)) return false;
  memory.bytes = bytes;
  return true;
}

void PhysicalMeter::mapped(CUdeviceptr address, uint64_t bytes,
                           CUmemGenericAllocationHandle handle) {
  const auto found = handles_.find(handle);
  if (found != handles_.end()) mappings_[address] = {found->second.memory, bytes};
}

void PhysicalMeter::unmapped(CUdeviceptr address, uint64_t bytes) {
  const auto begin = mappings_.lower_bound(address);
  auto end = begin;
  while (end != mappings_.end() && end->first - address < bytes) ++end;
  mappings_.erase(begin, end);
}

}  // namespace rcuda::server
