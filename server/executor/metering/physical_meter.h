// PhysicalMeter: books physical memory (cuMemCreate), which lives until its handles are released
// and its mappings are gone.
//
// The driver does not tell the size of memory that another process has exported. It counts by the
// largest mapping of it.
//
// Executor thread only. Nothing blocks; the driver is not called.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>

#include <cuda.h>

#include "server/executor/metering/memory_meter.h"

namespace rcuda::server {

class PhysicalMeter {
 public:
  explicit PhysicalMeter(MemoryMeter& meter) : meter_(meter) {}

  // The driver has returned `handle`, a reference of its own. `bytes`: booked already; 0: unknown.
  void created(CUmemGenericAllocationHandle handle, CUdevice device, uint64_t bytes);
  void retained(CUmemGenericAllocationHandle handle, CUdeviceptr mapped_at);
  void released(CUmemGenericAllocationHandle handle);
  // Before the driver maps it: books what was unknown. False: it does not fit.
  bool book_mapping(CUmemGenericAllocationHandle handle, uint64_t bytes);
  void mapped(CUdeviceptr address, uint64_t bytes, CUmemGenericAllocationHandle handle);
  void unmapped(CUdeviceptr address, uint64_t bytes);

 private:
  // The bytes are given back when no handle and no mapping refers to it.
  struct Memory {
    ~Memory() { meter.give(device, bytes); }
    MemoryMeter& meter;
    CUdevice device = 0;
    uint64_t bytes = 0;
    bool imported = false;
  };
  struct Handle {
    std::shared_ptr<Memory> memory;
    uint64_t references = 0;
  };
  struct Mapping {
    std::shared_ptr<Memory> memory;
    uint64_t bytes = 0;
  };

  MemoryMeter& meter_;
  std::unordered_map<CUmemGenericAllocationHandle, Handle> handles_;
  std::map<CUdeviceptr, Mapping> mappings_;  // by address; they do not overlap
};

}  // namespace rcuda::server
