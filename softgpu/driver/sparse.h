// Sparse arrays: addresses of an array to which the application maps memory tile by tile.
//
// A tile is 64 KiB of the array's memory without gaps: some whole rows, whose pitch is a power of
// two, or a part of one row that is longer. (On hardware tiles are squares; applications ask for
// their extent.) So mapping a tile replaces the array's own pages by those of the tile pool, and
// nothing else knows of tiles: not copies, textures, surfaces or kernels. Levels of a mipmapped
// array that are smaller than a tile are behind the others, as one tail. Without memory a tile
// reads as zeros.
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

// Of an array or a mipmapped array.
struct Tiles {
  CUDA_ARRAY_SPARSE_PROPERTIES properties{};
  size_t tail_at = 0;  // from the array's first byte
  std::mutex mutex;
  std::map<uint64_t, std::shared_ptr<PhysicalMemory>> mapped;  // by address; keeps the memory
};

// Lays out the levels of a sparse array, which have a descriptor and no memory: sets their pitches
// and places, and in `*bytes` what all take together. An array that is not mipmapped has one.
std::shared_ptr<Tiles> lay_out_tiles(const std::vector<std::shared_ptr<Array>>& levels,
                                     bool is_mipmapped, size_t* bytes);

}  // namespace softgpu::driver
