#include "softgpu/texture/footprint.h"

namespace softgpu::texture {
namespace {

// value / 2^bits, halves upwards.
int32_t rounded(uint64_t value, int bits) {
  return static_cast<int32_t>((value + (uint64_t{1} << (bits - 1))) >> bits);
}

// The four texels around a point of one slice.
void add_slice(const Pair (&pairs)[3], const std::array<Axis, 3>& axes, int32_t slice,
               uint32_t whole, Footprint* footprint) {
  const std::array<int32_t, 4> weights = split(whole, pairs[0].weight, pairs[1].weight);
  for (uint32_t corner = 0; corner < 4; ++corner) {
    footprint->add({resolve(pairs[0].first + (corner & 1), axes[0]),
                    resolve(pairs[1].first + (corner >> 1), axes[1]), slice, weights[corner]});
  }
}

}  // namespace

std::array<int32_t, 4> split(uint32_t whole, uint32_t right, uint32_t lower) {
  const auto w = static_cast<int32_t>(whole);
  const int32_t x = rounded(uint64_t{whole} * right, kFractionBits);
  const int32_t y = rounded(uint64_t{whole} * lower, kFractionBits);
  const int32_t both = rounded(uint64_t{whole} * right * lower, 2 * kFractionBits);
  return {w - x - y + both, x - both, y - both, both};
}

Footprint nearest_texel(const Place& place, const std::array<Axis, 3>& axes) {
  int32_t at[3] = {0, 0, static_cast<int32_t>(place.slice)};
  for (uint32_t k = 0; k < place.axes; ++k) {
    at[k] = resolve(nearest(place.coordinates[k], axes[k]), axes[k]);
  }
  Footprint footprint;
  footprint.add({at[0], at[1], at[2], kOne});
  return footprint;
}

Footprint enclosing_texels(const Place& place, const std::array<Axis, 3>& axes) {
  Pair pairs[3] = {};
  for (uint32_t k = 0; k < place.axes; ++k) {
    pairs[k] = enclosing(place.coordinates[k], axes[k]);
  }
  Footprint footprint;
  if (place.axes < 3) {
    add_slice(pairs, axes, static_cast<int32_t>(place.slice), kOne, &footprint);
  } else {
    const auto [first, weight] = pairs[2];
    add_slice(pairs, axes, resolve(first, axes[2]), kOne - weight, &footprint);
    add_slice(pairs, axes, resolve(first + 1, axes[2]), weight, &footprint);
  }
  return footprint;
}

}  // namespace softgpu::texture
