// Surfaces: reads and writes of bytes at integer coordinates, for one thread.
//
// x counts bytes, y rows and the third coordinate slices or layers. The caller has checked that
// [surface.begin, surface.end) may be accessed. Any thread; accesses are not atomic.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "softgpu/texture/texture.h"

namespace softgpu::texture {

// The effect of an access outside the surface.
enum class Bounds : uint8_t {
  kTrap,   // ends the kernel
  kClamp,  // uses the nearest place inside
  kZero,   // reads zeros, writes nothing
};

struct SurfacePoint {
  Shape shape = Shape::k2d;
  std::array<int32_t, 3> at = {};
  uint32_t layer = 0;
};

// Where an access of `bytes` bytes takes place.
struct SurfaceAccess {
  enum class Outcome : uint8_t { kInside, kNowhere, kOutside, kMisaligned };
  Outcome outcome = Outcome::kNowhere;
  uint64_t address = 0;  // set if kInside
};
// kNowhere reads zeros and writes nothing. kOutside and kMisaligned end the kernel.
SurfaceAccess locate(const Surface& surface, const SurfacePoint& point, uint32_t bytes,
                     Bounds bounds);

}  // namespace softgpu::texture
