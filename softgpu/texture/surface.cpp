#include "softgpu/texture/surface.h"

#include <algorithm>

namespace softgpu::texture {

SurfaceAccess locate(const Surface& surface, const SurfacePoint& point, uint32_t bytes,
                     Bounds bounds) {
  using Outcome = SurfaceAccess::Outcome;
  if (point.at[0] % static_cast<int32_t>(bytes) != 0) return {Outcome::kMisaligned, 0};
  const Image& image = surface.image;
  const int64_t row_bytes = int64_t{image.width} * surface.format.texel_bytes();
  // The third coordinate is a layer, a slice, or absent.
  int64_t at[3] = {point.at[0], 0, is_layered(point.shape) ? int64_t{point.layer} : 0};
  const uint32_t axes = axes_of(point.shape);
  for (uint32_t k = 1; k < axes; ++k) at[k] = point.at[k];
  const int64_t last[3] = {row_bytes - bytes, int64_t{image.height} - 1, int64_t{image.slices} - 1};
  if (last[0] < 0) return {bounds == Bounds::kTrap ? Outcome::kOutside : Outcome::kNowhere, 0};
  for (uint32_t k = 0; k < 3; ++k) {
    if (at[k] >= 0 && at[k] <= last[k]) continue;
    if (bounds == Bounds::kTrap) return {Outcome::kOutside, 0};
    if (bounds == Bounds::kZero) return {Outcome::kNowhere, 0};
    at[k] = std::clamp<int64_t>(at[k], 0, last[k]);
  }
  return {Outcome::kInside, image.memory + static_cast<uint64_t>(at[2]) * image.slice_bytes +
                                static_cast<uint64_t>(at[1]) * image.pitch_bytes +
                                static_cast<uint64_t>(at[0])};
}

}  // namespace softgpu::texture
