// Reads of textures: tex and tld4, for one thread.
//
// Each read returns the four registers of the instruction: the bits of floats, or integers if the
// sampler reads integers. The caller has checked that [texture.begin, texture.end) may be read. Any
// coordinate is valid. If the shape of a read is not the texture's shape, the read still returns
// some texels of the texture. Any thread.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

#include "softgpu/texture/texture.h"

namespace softgpu::texture {

// A point of a texture as an instruction gives it.
struct Point {
  Shape shape = Shape::k2d;
  std::array<float, 3> at = {};  // for a cube: a direction
  uint32_t layer = 0;            // clamped to the layers that exist
};

// tex with float coordinates. Linear memory and empty textures read as zeros. `level` is
// kMostDetailed if the instruction has no level.
inline constexpr float kMostDetailed = -std::numeric_limits<float>::infinity();
Words sample(const Texture& texture, const Point& point, float level);

// The level of detail of tex.grad.
float level_for_steps(const Texture& texture, const Point& point, const std::array<float, 3>& dx,
                      const std::array<float, 3>& dy);

// tex with integer coordinates: one texel, zeros outside.
Words fetch(const Texture& texture, Shape shape, const std::array<int32_t, 3>& at, uint32_t layer,
            int32_t level);

// tld4: a channel of the four texels that a filtered read would use, in the order lower left, lower
// right, upper right, upper left (y grows downwards).
Words gather(const Texture& texture, const Point& point, uint32_t channel);

}  // namespace softgpu::texture
