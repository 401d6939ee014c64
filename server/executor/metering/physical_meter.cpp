#include "server/executor/metering/physical_meter.h"

#include <iterator>
#include <utility>

namespace rcuda::server {

PhysicalMeter::Memory::~Memory() {
  owner.meter_.give(device, bytes);
  owner.shared_.erase(key);
}

void PhysicalMeter::created(CUmemGenericAllocationHandle handle, CUdevice device, uint64_t bytes) {
  Handle& known = handles_[handle];
  // If this process already has a handle for the same memory, a driver may return that handle.
  if (!known.memory) {
    known.memory.reset(new Memory{*this, device, bytes, bytes == 0});
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

std::shared_ptr<const void> PhysicalMeter::describe(CUmemGenericAllocationHandle handle,
                                                    ExportOrigin* origin) {
  const auto found = handles_.find(handle);
  if (found == handles_.end() || found->second.memory->unknown_size) return nullptr;
  const Import& memory = found->second.memory;
  if (memory->key == wire::ExportNumber{}) {
    const Result<wire::ExportNumber> key = make_export_number();
    if (key) memory->key = *key;
    if (key) shared_[*key] = memory;
  }
  origin->bytes = memory->bytes;
  origin->memory = memory->key;
  return memory;
}

PhysicalMeter::Import PhysicalMeter::book_import(CUdevice device, const ExportOrigin& origin) {
  if (const auto known = shared_.find(origin.memory); known != shared_.end()) {
    return known->second.lock();
  }
  if (!meter_.take(device, origin.bytes)) return nullptr;
  Import memory(new Memory{*this, device, origin.bytes, false, origin.memory});
  if (origin.memory != wire::ExportNumber{}) shared_[origin.memory] = memory;
  return memory;
}

void PhysicalMeter::imported(CUmemGenericAllocationHandle handle, Import memory) {
  Handle& known = handles_[handle];
  // If this process already has a handle for the same memory, a driver may return that handle.
  if (!known.memory) known.memory = std::move(memory);
  ++known.references;
}

bool PhysicalMeter::book_mapping(CUmemGenericAllocationHandle handle, uint64_t bytes) {
  const auto found = handles_.find(handle);
  if (found == handles_.end()) return true;
  Memory& memory = *found->second.memory;
  if (!memory.unknown_size || bytes <= memory.bytes) return true;
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
