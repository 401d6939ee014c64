// MovableMemory: device memory that the worker itself can move to the host and back without a
// change of its addresses (docs/parking.md).
//
// cuMemAlloc of 2 MiB and more becomes a reservation of addresses, physical memory, and a mapping.
// Physical memory that the program creates (cuMemCreate) moves, too. park() copies the physical
// memory to the host and releases it; the reservations stay. wake() creates physical memory again,
// maps it at the same addresses and copies back. Pointers in kernels and graphs stay valid.
//
// Other memory stays on its device: smaller allocations, pitched memory, memory of pools, arrays,
// modules and contexts; and physical memory that was exported or is part of a sparse array.
//
// For the driver, this memory differs from plain memory of cuMemAlloc in three ways. Programs see
// only the first difference: the worker replaces the functions that refuse the memory, and the
// client answers queries about addresses itself.
//   - Every device of the session has access. Without access, the driver would refuse copies
//     between the memory of two devices, although it makes such copies of plain memory (driver
//     580, H200). So a session has no movable memory if its devices cannot reach each other.
//   - cuIpcGetMemHandle refuses the memory, so export_allocation() exports it by a descriptor.
//   - cuMemFreeAsync refuses the memory, so free_in_order() records an event in the stream. The
//     memory is released after the stream has reached this event.
//
// The program gets handles that this object numbers, because the driver's handles change with each
// wake.
//
// Executor thread only. Blocking: park() and wake(), until the bytes are copied; free(), until the
// work of the current context and of the memory's context is done, as cuMemFree. Errors are those
// of the driver. Only one object per process may be in use at a time (api/driver_decorator.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <cuda.h>

#include "api/driver_decorator.h"
#include "api/driver_overrides.h"
#include "api/driver_table.h"
#include "common/base/status.h"
#include "common/wire/exported_name.h"
#include "server/executor/movable/host_copy.h"
#include "server/executor/objects/context_guard.h"
#include "server/executor/objects/objects.h"
#include "server/names/exported_names.h"

namespace rcuda::server {

class MovableMemory {
 public:
  // `moves`: the setting movable_memory. Without it, table() is the driver. The driver and `names`
  // outlive this object.
  MovableMemory(const api::DriverTable& plain, ExportedNames& names,
                const std::vector<SessionDevice>& devices, bool moves);
  ~MovableMemory();
  MovableMemory(const MovableMemory&) = delete;
  MovableMemory& operator=(const MovableMemory&) = delete;

  // For the program's calls.
  const api::DriverTable& table() const { return moving_ ? moving_->table() : driver; }

  // Whether the address lies in memory that cuMemAlloc made movable; true also after its export.
  bool is_allocation(CUdeviceptr address) const;
  // Exports memory for which is_allocation() is true, and returns its name, which ends with the
  // memory. From now on the memory stays on its device. Another call for the same memory returns
  // the same name.
  Result<wire::ExportedName> export_allocation(CUdeviceptr address, ExportOrigin origin);
  // Whether the name belongs to memory that this session has exported.
  bool has_exported(const wire::ExportedName& name) const;

  // The bytes that park() would move, by device.
  std::map<CUdevice, uint64_t> bytes();
  // The session must have no work in progress. An error leaves everything as it was.
  Status park();
  // Returns false if the devices have no room; the memory then stays parked. Keeps at most `keep`
  // bytes of page-locked host memory for the next park().
  Result<bool> wake(uint64_t keep);
  // Bytes of host memory in use for the copy, or kept for the next one.
  uint64_t host_bytes() const { return copy_.bytes(); }

  // ---- for the overrides (movable_overrides.cpp)
  struct Physical {
    ~Physical();
    const api::DriverTable& driver;
    CUmemGenericAllocationHandle handle = 0;  // the driver's; 0: the memory is parked
    CUmemAllocationProp properties{};
    uint64_t bytes = 0;
    bool stays = false;                       // never moves: exported, in an array, or of the host
    CUmemGenericAllocationHandle number = 0;  // the program's handle; 0: it has none
  };
  struct Export {
    ~Export() { names.remove(name); }
    ExportedNames& names;
    wire::ExportedName name;
  };
  struct Mapping {
    std::shared_ptr<Physical> physical;
    uint64_t bytes = 0;
    std::vector<CUmemAccessDesc> access;
    CUcontext owner = nullptr;  // context of the cuMemAlloc; null: mapped by the program
    uint64_t requested = 0;     // the argument of cuMemAlloc; `bytes` is rounded up
    std::shared_ptr<const Export> exported;
    bool is_freed = false;  // freed in stream order; in freed_ until the stream reaches the free
  };
  using Mappings = std::map<CUdeviceptr, Mapping>;

  CUresult allocate(CUdeviceptr* address, size_t bytes);
  CUresult free(CUdeviceptr address);
  CUresult free_in_order(CUdeviceptr address, CUstream stream);
  // The mapping that contains the address, or null.
  const Mappings::value_type* find(CUdeviceptr address) const;
  // Returns the physical memory by the program's handle, or null if this object has not made the
  // handle.
  std::shared_ptr<Physical> find_handle(CUmemGenericAllocationHandle handle) const;
  // Adds a reference of the program, and returns the program's handle.
  CUmemGenericAllocationHandle add_handle(std::shared_ptr<Physical> physical);
  bool release_handle(CUmemGenericAllocationHandle handle);
  CUresult map(CUdeviceptr address, uint64_t bytes, uint64_t offset,
               CUmemGenericAllocationHandle handle, unsigned long long flags);
  CUresult unmap(CUdeviceptr address, uint64_t bytes);
  CUresult set_access(CUdeviceptr address, uint64_t bytes, const CUmemAccessDesc* list,
                      size_t count);
  // Releases the memory whose stream has reached free_in_order(). To be called before anything that
  // needs free memory on a device.
  void end_freed();
  // To be called after the end or the reset of the context.
  void end_context(CUcontext context);
  // Frees the page-locked memory that wake() has kept for the next park(). To be called before a
  // primary context is reset, because the reset may unlock this memory.
  void forget_copy() { copy_.keep(0, primary_context(driver, devices_.front().device)); }

  const api::DriverTable& driver;
  bool has_captured = false;  // a stream has been in capture
  std::map<CUgreenCtx, CUcontext> greens;

 private:
  struct Device {
    CUdevice device = 0;
    CUmemAllocationProp properties{};  // for new allocations
    int node = -1;                     // the NUMA node near the device; -1: unknown
  };
  struct Free {
    CUevent event = nullptr;
    CUcontext context = nullptr;
    CUdeviceptr address = 0;
  };
  struct Handle {
    std::shared_ptr<Physical> physical;
    uint64_t references = 0;
  };
  // Physical memory, and the address at which it is copied.
  struct Moved {
    std::shared_ptr<Physical> physical;
    CUdeviceptr address = 0;  // of a mapping that the memory's device can access
    bool is_scratch = false;  // `address` is a mapping for the copy only
  };

  const Device* find_device(CUdevice device) const;
  // Returns the context that owns the memory and the events of `context`: for a green context, the
  // primary context of its device; otherwise `context` itself.
  CUcontext owner_of(CUcontext context) const;
  CUresult back(CUdeviceptr address, uint64_t bytes, const Device& on, Mapping* mapping);
  void end(Mappings::iterator allocation);
  CUresult wait_for_work();  // waits for the work of the current context, as cuMemFree does
  std::vector<std::shared_ptr<Physical>> movable() const;
  CUresult map_scratch(Moved* moved);
  void unmap_scratch(const Moved& moved);
  // Chooses an address for the copy of each piece of memory: a mapping of the program, or a mapping
  // that exists only for the copy.
  CUresult find_places(const std::vector<std::shared_ptr<Physical>>& all,
                       std::vector<Moved>* moved);
  std::vector<HostCopy::Piece> pieces_of(const std::vector<Moved>& moved) const;
  // These functions handle all memory in parked_.
  CUresult create_all();
  CUresult map_all();
  void release_all();

  ExportedNames& names_;
  std::vector<Device> devices_;
  std::vector<CUmemAccessDesc> access_;  // access to new allocations
  Mappings mappings_;                    // by address; they do not overlap
  std::map<CUmemGenericAllocationHandle, Handle> handles_;
  CUmemGenericAllocationHandle next_handle_;
  std::vector<Free> freed_;
  std::vector<std::shared_ptr<Physical>> parked_;  // in the order of their bytes in copy_
  HostCopy copy_;
  std::optional<DriverDecorator<MovableMemory>> moving_;
};

}  // namespace rcuda::server
