// The VMM family: reserved addresses, physical memory, and mappings of the memory at the addresses.
//
// A reservation is inaccessible pages of this process; mapping replaces them by pages of the
// physical memory's file. Kernels may touch a mapping once cuMemSetAccess has named their device.
// Physical memory lives until its handles are released and its mappings unmapped; the device is
// charged for it until then. Exportable memory has its own file (shared_file.h); other memory is a
// range of an arena's file. Any thread; one mutex for reservations and handles. Unmapping waits for
// the current context's work.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <cuda.h>

#include "common/base/unique_fd.h"
#include "softgpu/driver/arena.h"

namespace softgpu::driver {

class Device;

struct PhysicalMemory {
  ~PhysicalMemory();

  Device* device = nullptr;  // nullptr: host memory
  CUmemAllocationProp properties{};
  size_t bytes = 0;
  uint64_t id = 0;
  rcuda::UniqueFd own_file;      // exportable or imported memory
  std::shared_ptr<Arena> arena;  // otherwise: file_offset lies in this arena's file
  uint64_t file_offset = 0;
  bool charged = false;
  uint64_t inode = 0;                 // of own_file
  std::atomic<bool> exported{false};  // another process may have it
  int handles = 0;                    // references by the application; guarded by the VMM mutex

  int file() { return own_file ? own_file.get() : arena->file(); }
};

// Null for an unknown handle.
std::shared_ptr<PhysicalMemory> find_physical(CUmemGenericAllocationHandle handle);
// The reserved range that contains `address`, mapped or not; false outside of all ranges.
bool find_reservation(CUdeviceptr address, CUdeviceptr* base, size_t* bytes);

}  // namespace softgpu::driver
