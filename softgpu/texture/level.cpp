#include "softgpu/texture/level.h"

#include <algorithm>
#include <cmath>

namespace softgpu::texture {

Levels levels_of(const Texture& texture, float level) {
  const auto last = static_cast<float>(texture.levels.size() - 1);
  const Sampler& sampler = texture.sampler;
  const float biased = level + sampler.level_bias;
  if (texture.levels.size() == 1 || std::isnan(biased)) return {};
  const float wanted = std::min(std::max(biased, sampler.least_level), sampler.greatest_level);
  const float at = std::clamp(wanted, 0.0f, last);
  if (!sampler.filters_levels) return {static_cast<uint32_t>(std::floor(at + 0.5f)), 0};
  const auto fixed = static_cast<uint32_t>(at * kOne);
  return {fixed >> kFractionBits, fixed & (kOne - 1)};
}

float level_for_steps(const Texture& texture, const std::array<float, 3>& dx,
                      const std::array<float, 3>& dy, uint32_t axes) {
  const Image& image = texture.levels[0];
  const double sizes[3] = {static_cast<double>(image.width), static_cast<double>(image.height),
                           static_cast<double>(image.slices)};
  // The steps in texels. The steps in all directions form an ellipse, and its long axis is the
  // longest step.
  double xx = 0, yy = 0, xy = 0;
  for (uint32_t k = 0; k < std::min(axes, 3u); ++k) {
    const double scale = texture.sampler.is_normalised ? sizes[k] : 1;
    const double x = static_cast<double>(dx[k]) * scale, y = static_cast<double>(dy[k]) * scale;
    xx += x * x;
    yy += y * y;
    xy += x * y;
  }
  const double squared = (xx + yy + std::hypot(xx - yy, 2 * xy)) / 2;
  return static_cast<float>(std::floor(std::log2(squared) / 2 * kOne + 0.5) / kOne);
}

}  // namespace softgpu::texture
