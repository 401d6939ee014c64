#include "softgpu/driver/sparse.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include <sys/mman.h>

#include "common/base/log.h"
#include "softgpu/driver/arena.h"
#include "softgpu/driver/array.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/operation.h"
#include "softgpu/driver/stream.h"
#include "softgpu/driver/vmm.h"

namespace softgpu::driver {
namespace {

// A tile and the memory to map there; null memory unmaps the tile.
struct TileMapping {
  uint64_t address = 0;
  std::shared_ptr<PhysicalMemory> memory;
  uint64_t offset = 0;  // of the tile in `memory`
};

struct Batch {
  std::shared_ptr<Tiles> tiles;
  std::vector<TileMapping> mappings;
};

bool replace_pages(uint64_t address, int file, uint64_t offset) {
  return ::mmap(reinterpret_cast<void*>(address), kTileBytes, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file,
                static_cast<off_t>(offset)) != MAP_FAILED;
}

// Unmaps a tile: maps the array's own pages again, filled with zeros.
bool restore_pages(uint64_t address) {
  const std::shared_ptr<Allocation> own = memory_registry().find(address);
  return own &&
         replace_pages(address, own->arena->file(),
                       own->block.file_offset + (address - own->block.address)) &&
         ::madvise(reinterpret_cast<void*>(address), kTileBytes, MADV_REMOVE) == 0;
}

void apply(Batch& batch) {
  std::lock_guard lock(batch.tiles->mutex);
  for (TileMapping& mapping : batch.mappings) {
    const bool done = mapping.memory ? replace_pages(mapping.address, mapping.memory->file(),
                                                     mapping.memory->file_offset + mapping.offset)
                                     : restore_pages(mapping.address);
    if (!done) RCUDA_ERROR("cannot map a tile of a sparse array: %s", std::strerror(errno));
    if (mapping.memory) {
      batch.tiles->mapped[mapping.address] = std::move(mapping.memory);
    } else {
      batch.tiles->mapped.erase(mapping.address);
    }
  }
}

// An error in `status` means that the context has failed; then nothing is mapped.
void CUDA_CB run(CUstream, CUresult status, void* data) {
  const std::unique_ptr<Batch> batch(static_cast<Batch*>(data));
  if (status == CUDA_SUCCESS) apply(*batch);
}

// The array that an entry of cuMemMapArrayAsync's list names.
struct Named {
  std::shared_ptr<Tiles> tiles;
  std::vector<std::shared_ptr<Array>> levels;
  uint64_t memory = 0;
};

bool find_named(const CUarrayMapInfo& info, Named* named) {
  if (info.resourceType == CU_RESOURCE_TYPE_ARRAY) {
    const std::shared_ptr<Array> array = array_from_handle(info.resource.array);
    if (array) *named = {array->tiles, {array}, array->memory};
  } else if (info.resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
    const auto array = handle_table<MipmappedArray>().find(info.resource.mipmap);
    if (array) *named = {array->tiles, array->levels, array->memory};
  }
  return named->tiles != nullptr;
}

// Whether a range of one dimension consists of whole tiles; the last tile may extend beyond the
// edge.
bool is_tiled(size_t offset, size_t extent, size_t tile, size_t whole) {
  return extent != 0 && offset % tile == 0 && offset < whole &&
         (extent % tile == 0 || offset + extent == whole) &&
         offset + extent <= round_up(whole, tile);
}

bool tiles_of_level(const CUarrayMapInfo& info, const Named& named,
                    std::vector<TileMapping>* tiles) {
  const auto& range = info.subresource.sparseLevel;
  const CUDA_ARRAY_SPARSE_PROPERTIES& properties = named.tiles->properties;
  const auto& tile = properties.tileExtent;
  if (range.level >= named.levels.size() ||
      (named.levels.size() > 1 && range.level >= properties.miptailFirstLevel)) {
    return false;
  }
  const Array& array = *named.levels[range.level];
  const bool layers = kind_of(array.descriptor) != ArrayKind::k3d;
  const size_t first = layers ? range.layer : range.offsetZ;
  if (!is_tiled(range.offsetX, range.extentWidth, tile.width, array.descriptor.Width) ||
      !is_tiled(range.offsetY, range.extentHeight, tile.height, array.rows()) ||
      (layers ? range.offsetZ != 0 || range.extentDepth != 1 : range.layer != 0) ||
      range.extentDepth == 0 || first + range.extentDepth > array.slices()) {
    return false;
  }
  for (size_t z = first; z < first + range.extentDepth; ++z) {
    for (size_t y = range.offsetY; y < size_t{range.offsetY} + range.extentHeight;
         y += tile.height) {
      for (size_t x = range.offsetX; x < size_t{range.offsetX} + range.extentWidth;
           x += tile.width) {
        tiles->push_back({array.memory + z * array.slice_bytes() + y * array.pitch_bytes() +
                              x * array.element_bytes,
                          nullptr});
      }
    }
  }
  return true;
}

bool tiles_of_tail(const CUarrayMapInfo& info, const Named& named,
                   std::vector<TileMapping>* tiles) {
  const auto& range = info.subresource.miptail;
  const uint64_t all = named.tiles->properties.miptailSize;
  if (range.layer != 0 || range.size == 0 || range.offset % kTileBytes != 0 ||
      range.size % kTileBytes != 0 || range.offset > all || range.size > all - range.offset) {
    return false;
  }
  for (uint64_t at = range.offset; at < range.offset + range.size; at += kTileBytes) {
    tiles->push_back({named.memory + named.tiles->tail_at + at, nullptr});
  }
  return true;
}

// Gives the tiles consecutive memory of the pool.
bool back_tiles(const CUarrayMapInfo& info, const Device& device, std::vector<TileMapping>* tiles) {
  const std::shared_ptr<PhysicalMemory> memory = find_physical(info.memHandle.memHandle);
  if (!memory || info.memHandleType != CU_MEM_HANDLE_TYPE_GENERIC || memory->device != &device ||
      !(memory->properties.allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL) ||
      info.offset % kTileBytes != 0 || info.offset > memory->bytes ||
      tiles->size() > (memory->bytes - info.offset) / kTileBytes) {
    return false;
  }
  uint64_t at = info.offset;
  for (TileMapping& tile : *tiles) {
    tile.memory = memory;
    tile.offset = at;
    at += kTileBytes;
  }
  return true;
}

bool batch_of(const CUarrayMapInfo& info, const Device& device, Batch* batch) {
  Named named;
  if (!find_named(info, &named) || info.deviceBitMask != 1u << device.ordinal() ||
      info.flags != 0 || info.reserved[0] != 0 || info.reserved[1] != 0) {
    return false;
  }
  batch->tiles = named.tiles;
  const bool found = info.subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL
                         ? tiles_of_level(info, named, &batch->mappings)
                         : info.subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL &&
                               tiles_of_tail(info, named, &batch->mappings);
  if (!found) return false;
  if (info.memOperationType == CU_MEM_OPERATION_TYPE_UNMAP) return info.memHandle.memHandle == 0;
  return info.memOperationType == CU_MEM_OPERATION_TYPE_MAP &&
         back_tiles(info, device, &batch->mappings);
}

}  // namespace

std::shared_ptr<Tiles> lay_out_tiles(const std::vector<std::shared_ptr<Array>>& levels,
                                     bool is_mipmapped, size_t* bytes) {
  const Array& whole = *levels.front();
  const size_t row = whole.descriptor.Width * whole.element_bytes;
  const size_t tile_row = std::min(std::bit_ceil(row), kTileBytes);
  const size_t tile_rows = kTileBytes / tile_row;
  auto tiles = std::make_shared<Tiles>();
  CUDA_ARRAY_SPARSE_PROPERTIES& properties = tiles->properties;
  properties.tileExtent = {static_cast<unsigned>(tile_row / whole.element_bytes),
                           static_cast<unsigned>(tile_rows), 1};
  const auto has_tiles = [&](const Array& level) {
    return !is_mipmapped || (level.descriptor.Width >= properties.tileExtent.width &&
                             level.rows() >= properties.tileExtent.height);
  };
  size_t at = 0, index = 0;
  for (; index < levels.size() && has_tiles(*levels[index]); ++index) {
    Array& level = *levels[index];
    level.memory = at;
    level.row_pitch = round_up(level.descriptor.Width * level.element_bytes, tile_row);
    level.slice_pitch = level.row_pitch * round_up(level.rows(), tile_rows);
    at += level.bytes();
  }
  tiles->tail_at = at;
  properties.miptailFirstLevel = is_mipmapped ? static_cast<unsigned>(index) : 0;
  properties.flags = is_mipmapped ? CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL : 0;
  for (; index < levels.size(); ++index) {
    levels[index]->memory = at;
    at = round_up(at + levels[index]->bytes(), kBlockGranularity);
  }
  at = round_up(at, kTileBytes);
  properties.miptailSize = at - tiles->tail_at;
  // Large enough for a mapping of its own (arena.h), whose pages can be replaced.
  *bytes = round_up(at, kPhysicalGranularity);
  return tiles;
}

}  // namespace softgpu::driver

using namespace softgpu::driver;

extern "C" {

CUresult CUDAAPI cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES* properties,
                                            CUarray handle) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  const std::shared_ptr<Array> array = array_from_handle(handle);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  if (!properties || !array->tiles) return CUDA_ERROR_INVALID_VALUE;
  *properties = array->tiles->properties;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES* properties,
                                                     CUmipmappedArray handle) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  const auto array = handle_table<MipmappedArray>().find(handle);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  if (!properties || !array->tiles) return CUDA_ERROR_INVALID_VALUE;
  *properties = array->tiles->properties;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemMapArrayAsync(CUarrayMapInfo* list, unsigned count, CUstream handle) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(handle, &context, &stream)) return result;
  if (CUresult result = refuse_on_capturing(*stream)) return result;
  if (!list || count == 0) return CUDA_ERROR_INVALID_VALUE;
  std::vector<std::unique_ptr<Batch>> batches;
  for (unsigned i = 0; i < count; ++i) {
    auto batch = std::make_unique<Batch>();
    if (!batch_of(list[i], context->device(), batch.get())) return CUDA_ERROR_INVALID_VALUE;
    batches.push_back(std::move(batch));
  }
  for (std::unique_ptr<Batch>& batch : batches) {
    if (CUresult result = submit(*stream, HostOperation{nullptr, &run, handle, batch.get()})) {
      return result;
    }
    (void)batch.release();  // run() deletes it
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
