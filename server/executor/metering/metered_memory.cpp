// Overrides of a metered driver for the query of free memory, allocations and frees in stream
// order, physical memory, memory of other processes, and graphs. Also computes the sizes of pitched
// memory and arrays.
#include <algorithm>
#include <cstdint>

#include "common/cuda/batch_shape.h"
#include "server/executor/metering/meters.h"
#include "server/executor/streams/capture.h"

namespace rcuda::server {
namespace {

constexpr uint64_t kLargestPitchUnit = 512;
// The bytes that count for an element of a format with an unknown size, such as compressed and
// planar formats.
constexpr uint64_t kLargestElement = 16;

uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned level) {
  // The memory of these arrays is mapped later.
  if (array.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) return 0;
  const auto extent = [&](size_t size) { return std::max<uint64_t>(size >> level, 1); };
  const uint64_t channel = cuda::format_bytes(array.Format);
  uint64_t bytes = channel ? channel * std::max(array.NumChannels, 1u) : kLargestElement;
  const uint64_t depth = array.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)
                             ? std::max<uint64_t>(array.Depth, 1)
                             : extent(array.Depth);
  if (__builtin_mul_overflow(bytes, extent(array.Width), &bytes) ||
      __builtin_mul_overflow(bytes, extent(array.Height), &bytes) ||
      __builtin_mul_overflow(bytes, depth, &bytes)) {
    return UINT64_MAX;
  }
  return bytes;
}

CUdevice device_of(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : MemoryMeter::kHost;
}

// Returns null if the memory has no pool, for instance in a capture.
CUmemoryPool pool_of(const api::DriverTable& driver, CUdeviceptr address) {
  CUmemoryPool pool = nullptr;
  const CUresult result =
      driver.cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address);
  return result == CUDA_SUCCESS ? pool : nullptr;
}

// `pool`: null if the memory comes from the current pool of the stream's device. may_hold() then
// checks the pool of the current context's device, although the stream may be of another device.
template <typename Allocate>
CUresult allocate_in_order(Meters& meters, CUdeviceptr* address, size_t bytes, CUmemoryPool pool,
                           CUstream stream, Allocate allocate) {
  meters.memory.give_way(bytes);
  const auto with_room = [&] { return meters.memory.with_room({}, bytes, allocate); };
  if (!meters.limits) {  // counts the bytes that the pool holds after the allocation
    const CUresult result = with_room();
    if (result != CUDA_SUCCESS) return result;
    meters.pools.know_defaults();
    if (const CUmemoryPool used = pool_of(meters.driver, *address)) meters.pools.book_growth(used);
    return result;
  }
  // An allocation in a stream that captures becomes a node of a graph: GraphMeter books its memory.
  if (captured_into(meters.driver, stream)) return allocate();
  MemoryMeter::Place place;
  RCUDA_RETURN_IF_CUDA_ERROR(meters.memory.current(&place));
  if (!pool) pool = meters.pools.current_of(place.device);
  if (!meters.pools.may_hold(pool, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  RCUDA_RETURN_IF_CUDA_ERROR(with_room());
  const CUmemoryPool used = pool_of(meters.driver, *address);
  if (meters.pools.book_growth(used ? used : pool)) return CUDA_SUCCESS;
  meters.driver.cuMemFreeAsync(*address, stream);
  *address = 0;
  meters.reclaim();
  meters.memory.warn(place.device, bytes);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// Without limits: counts the bytes that the driver has reserved by the end of the call.
CUresult count_growth(Meters& meters, CUgraphExec executable, CUresult result) {
  if (result == CUDA_SUCCESS && meters.graphs.has_memory(executable)) meters.graphs.book_growth();
  return result;
}

}  // namespace

uint64_t pitched_bytes(size_t width, size_t height) {
  uint64_t bytes = 0;
  const bool overflows = __builtin_mul_overflow(rounded(width, kLargestPitchUnit), height, &bytes);
  return overflows ? UINT64_MAX : bytes;
}

uint64_t array_bytes(const CUDA_ARRAY_DESCRIPTOR& array) {
  return level_bytes({array.Width, array.Height, 0, array.Format, array.NumChannels}, 0);
}

uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned levels) {
  uint64_t bytes = 0;
  for (unsigned level = 0; level < std::min(levels, 63u); ++level) {
    if (__builtin_add_overflow(bytes, level_bytes(array, level), &bytes)) return UINT64_MAX;
  }
  return bytes;
}

CUresult meters_cuMemGetInfo_v2(Meters& meters, size_t* free, size_t* total) {
  meters.refresh();
  const CUresult result = meters.driver.cuMemGetInfo_v2(free, total);
  MemoryMeter::Place place;
  if (result != CUDA_SUCCESS || meters.memory.current(&place) != CUDA_SUCCESS) return result;
  if (free && total && meters.memory.others.could_free) {
    *free = std::min<size_t>(*total, *free + meters.memory.could_free(place.device, *free));
  }
  const auto room = meters.memory.room(place.device);
  if (!room) return result;
  if (free) *free = std::min<size_t>(*free, room->free);
  if (total) *total = std::min<size_t>(*total, room->limit);
  return result;
}

// ---- pools, and frees in stream order ----------------------------------------------------------

CUresult meters_cuMemAllocAsync(Meters& meters, CUdeviceptr* address, size_t bytes,
                                CUstream stream) {
  return allocate_in_order(meters, address, bytes, nullptr, stream,
                           [&] { return meters.driver.cuMemAllocAsync(address, bytes, stream); });
}

CUresult meters_cuMemAllocFromPoolAsync(Meters& meters, CUdeviceptr* address, size_t bytes,
                                        CUmemoryPool pool, CUstream stream) {
  return allocate_in_order(meters, address, bytes, pool, stream, [&] {
    return meters.driver.cuMemAllocFromPoolAsync(address, bytes, pool, stream);
  });
}

CUresult meters_cuMemFreeAsync(Meters& meters, CUdeviceptr address, CUstream stream) {
  const auto booking = meters.allocations.remove(address);
  const CUresult result = meters.driver.cuMemFreeAsync(address, stream);
  if (!booking) return result;
  if (result == CUDA_SUCCESS && !meters.limits) {
    meters.allocations.give(*booking);
  } else if (result != CUDA_SUCCESS ||
             !meters.stream_frees.add(*booking, stream, meters.allocations)) {
    meters.allocations.put(address, *booking);  // booked until its context ends
  }
  return result;
}

// ---- physical memory, and memory of other processes --------------------------------------------

CUresult meters_cuMemCreate(Meters& meters, CUmemGenericAllocationHandle* handle, size_t bytes,
                            const CUmemAllocationProp* properties, unsigned long long flags) {
  const CUdevice device = device_of(properties->location);
  if (!meters.memory.take(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = meters.memory.with_room(
      device, bytes, [&] { return meters.driver.cuMemCreate(handle, bytes, properties, flags); });
  if (result == CUDA_SUCCESS) {
    meters.physical.created(*handle, device, bytes);
  } else {
    meters.memory.give_back(device, bytes);
  }
  return result;
}

// Called only for memory whose size the exporter does not report (Meters::import_allocation()).
CUresult meters_cuMemImportFromShareableHandle(Meters& meters, CUmemGenericAllocationHandle* handle,
                                               void* shareable, CUmemAllocationHandleType type) {
  RCUDA_RETURN_IF_CUDA_ERROR(meters.driver.cuMemImportFromShareableHandle(handle, shareable, type));
  CUmemAllocationProp properties{};
  const CUresult result =
      meters.driver.cuMemGetAllocationPropertiesFromHandle(&properties, *handle);
  if (result == CUDA_SUCCESS) {
    meters.physical.created(*handle, device_of(properties.location), 0);
  } else {
    meters.driver.cuMemRelease(*handle);
  }
  return result;
}

CUresult meters_cuMemMap(Meters& meters, CUdeviceptr address, size_t bytes, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags) {
  if (!meters.physical.book_mapping(handle, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = meters.driver.cuMemMap(address, bytes, offset, handle, flags);
  if (result == CUDA_SUCCESS) meters.physical.mapped(address, bytes, handle);
  return result;
}

CUresult Meters::book_imported(CUdeviceptr address) {
  MemoryMeter::Place place;
  int device = 0;
  size_t bytes = 0;
  RCUDA_RETURN_IF_CUDA_ERROR(memory.current(&place));
  RCUDA_RETURN_IF_CUDA_ERROR(driver.cuMemGetAddressRange_v2(nullptr, &bytes, address));
  RCUDA_RETURN_IF_CUDA_ERROR(
      driver.cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address));
  place.device = device;
  if (!memory.take(place.device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  allocations.put(address, {place, bytes});
  return CUDA_SUCCESS;
}

// If the memory is open already, counts one more reference and books nothing.
CUresult meters_cuIpcOpenMemHandle_v2(Meters& meters, CUdeviceptr* address, CUipcMemHandle handle,
                                      unsigned flags) {
  CUresult result = meters.driver.cuIpcOpenMemHandle_v2(address, handle, flags);
  if (result != CUDA_SUCCESS) return result;
  if (auto booking = meters.allocations.remove(*address)) {
    ++booking->references;
    meters.allocations.put(*address, *booking);
    return CUDA_SUCCESS;
  }
  result = meters.book_imported(*address);
  if (result != CUDA_SUCCESS) meters.driver.cuIpcCloseMemHandle(*address);
  return result;
}

CUresult meters_cuIpcCloseMemHandle(Meters& meters, CUdeviceptr address) {
  auto booking = meters.allocations.remove(address);
  const CUresult result = meters.driver.cuIpcCloseMemHandle(address);
  if (!booking) return result;
  if (result == CUDA_SUCCESS && --booking->references == 0) {
    meters.allocations.give(*booking);
  } else {
    meters.allocations.put(address, *booking);
  }
  return result;
}

// ---- graphs ------------------------------------------------------------------------------------

CUresult Meters::book_executable(CUgraphExec executable, CUgraph graph) {
  graphs.made(executable, graph);
  return graphs.book_growth() ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult meters_cuGraphUpload(Meters& meters, CUgraphExec executable, CUstream stream) {
  meters.graphs.changed(executable);
  // An executable without allocation nodes has nothing to book, but the program wants the upload.
  if (meters.limits && meters.graphs.has_memory(executable)) {
    return meters.graphs.prepare(executable, stream);
  }
  const CUresult result = meters.driver.cuGraphUpload(executable, stream);
  return meters.limits ? result : count_growth(meters, executable, result);
}

// A launch in a stream that captures becomes a node of a graph, and reserves no memory now.
CUresult meters_cuGraphLaunch(Meters& meters, CUgraphExec executable, CUstream stream) {
  if (!meters.limits) {
    return count_growth(meters, executable, meters.driver.cuGraphLaunch(executable, stream));
  }
  if (!captured_into(meters.driver, stream)) {
    RCUDA_RETURN_IF_CUDA_ERROR(meters.graphs.prepare(executable, stream));
  }
  return meters.driver.cuGraphLaunch(executable, stream);
}

}  // namespace rcuda::server
