// Levels of detail: which levels of a mipmapped texture a read uses.
//
// Level 0 is the most detailed. Pure functions, any thread.
#pragma once

#include <array>
#include <cstdint>

#include "softgpu/texture/texture.h"

namespace softgpu::texture {

// A read of level `first`, or of a mix of the levels `first` and `first` + 1. The weight, in 1/256,
// is that of `first` + 1.
struct Levels {
  uint32_t first = 0;
  uint32_t weight = 0;
};
// Adds the sampler's bias to `level`, the level of the instruction, and applies the sampler's
// limits. Minus infinity selects the most detailed level that the limits allow.
Levels levels_of(const Texture& texture, float level);

// The level whose texels are as long as the longest step, in any direction, between neighbouring
// reads. The level is rounded to a multiple of 1/256. `dx` and `dy` are the changes of the
// coordinates, on the first `axes` axes. Hardware approximates this level.
float level_for_steps(const Texture& texture, const std::array<float, 3>& dx,
                      const std::array<float, 3>& dy, uint32_t axes);

}  // namespace softgpu::texture
