// PhysicalMeter: books physical memory (cuMemCreate), which lives until its handles are released
// and its mappings are gone.
//
// The driver does not report the size of memory that another process has exported. The exporting
// worker does (server/names/exported_names.h), so the memory is booked before it is imported. If
// that worker does not know the size either, the largest mapping is booked. A session that gets the
// same memory in several ways books it once.
//
// Executor thread only. Nothing blocks; the driver is not called.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>

#include <cuda.h>

#include "server/executor/metering/memory_meter.h"
#include "server/names/exported_names.h"

namespace rcuda::server {

class PhysicalMeter {
 public:
  explicit PhysicalMeter(MemoryMeter& meter) : meter_(meter) {}

  struct Memory;
  using Import = std::shared_ptr<Memory>;

  // The driver has returned `handle`, which counts as one reference. `bytes`: the memory's size,
  // which is booked already; 0: the size is unknown.
  void created(CUmemGenericAllocationHandle handle, CUdevice device, uint64_t bytes);
  void retained(CUmemGenericAllocationHandle handle, CUdeviceptr mapped_at);
  void released(CUmemGenericAllocationHandle handle);
  // Writes the memory's size and key to `origin`. The memory stays booked as long as the result
  // lives. Returns null and writes nothing if the size is unknown.
  std::shared_ptr<const void> describe(CUmemGenericAllocationHandle handle, ExportOrigin* origin);
  // To be called before the driver imports memory of a known size. Returns null if it does not fit.
  Import book_import(CUdevice device, const ExportOrigin& origin);
  void imported(CUmemGenericAllocationHandle handle, Import memory);
  // To be called before the driver maps memory. If the memory's size is unknown, books the largest
  // mapping. Returns false if it does not fit.
  bool book_mapping(CUmemGenericAllocationHandle handle, uint64_t bytes);
  void mapped(CUdeviceptr address, uint64_t bytes, CUmemGenericAllocationHandle handle);
  void unmapped(CUdeviceptr address, uint64_t bytes);

 private:
  struct Handle {
    std::shared_ptr<Memory> memory;
    uint64_t references = 0;
  };
  struct Mapping {
    std::shared_ptr<Memory> memory;
    uint64_t bytes = 0;
  };

  MemoryMeter& meter_;
  std::map<wire::ExportNumber, std::weak_ptr<Memory>> shared_;  // by the key of its exports
  std::unordered_map<CUmemGenericAllocationHandle, Handle> handles_;
  std::map<CUdeviceptr, Mapping> mappings_;  // by address; they do not overlap
};

// One piece of physical memory. Its booking ends with its last handle, mapping and export.
struct PhysicalMeter::Memory {
  ~Memory();
  PhysicalMeter& owner;
  CUdevice device = 0;
  uint64_t bytes = 0;
  bool unknown_size = false;
  wire::ExportNumber key{};  // zeros: neither exported nor imported
};

}  // namespace rcuda::server
