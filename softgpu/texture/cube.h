// Cube maps: from a direction to a face, and across the edges between faces.
//
// Faces are ordered +x, -x, +y, -y, +z, -z. On each face the coordinates s (to the right) and t
// (downwards) go from 0 to 1. Pure functions, any thread.
#pragma once

#include <cstdint>

#include "softgpu/texture/footprint.h"

namespace softgpu::texture {

struct FacePoint {
  uint32_t face = 0;
  float s = 0.5f, t = 0.5f;
};
// The face in the direction of the component with the largest magnitude; of equal components, z
// comes before y and y before x.
FacePoint face_of(float x, float y, float z);

// The footprint of a filtered read of a cube with faces of `size` texels. Texels beyond an edge are
// those of the neighbouring face; the missing texel at a corner is the mean of the other three.
// `first_slice` is the slice of face +x, `whole` the weight of all taps together.
Footprint seamless_texels(const FacePoint& point, uint32_t size, uint32_t first_slice,
                          uint32_t whole);

}  // namespace softgpu::texture
