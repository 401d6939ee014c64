// Sparse arrays: arrays to whose addresses the application maps memory, tile by tile.
//
// A tile is 64 contiguous KiB of the array: several whole rows, whose pitch is a power of two, or a
// part of a longer row. (On hardware tiles are squares; applications query their extent.) Mapping a
// tile replaces the array's own pages by pages of the tile pool, so copies, textures, surfaces and
// kernels need no code for tiles. Levels of a mipmapped array that are smaller than a tile follow
// the others, as one tail. A tile without memory reads as zeros.
//
// Mappings are made on the stream's thread; cuArrayDestroy waits for them.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <cuda.h>

namespace softgpu::driver {

class Device;
struct Array;
struct PhysicalMemory;

inline constexpr size_t kTileBytes = size_t{64} << 10;

// The tiles of an array or a mipmapped array.
struct Tiles {
  CUDA_ARRAY_SPARSE_PROPERTIES properties{};
  size_t tail_at = 0;  // offset of the mip tail from the array's first byte
  std::mutex mutex;
  std::map<uint64_t, std::shared_ptr<PhysicalMemory>> mapped;  // by the tile's address
};

// Lays out the levels of a sparse array, which have descriptors but no memory yet: sets their
// pitches and their addresses relative to the array, and `*bytes` to the size of all levels. An
// array that is not mipmapped has one level.
std::shared_ptr<Tiles> lay_out_tiles(const std::vector<std::shared_ptr<Array>>& levels,
                                     bool is_mipmapped, size_t* bytes);

}  // namespace softgpu::driver
