#include "softgpu/texture/footprint.h"

namespace softgpu::texture {
namespace {

// weight * share / 256; a half is rounded up or down.
uint32_t half_up(uint32_t weight, uint32_t share) { return (weight * share + kOne / 2) / kOne; }
uint32_t half_down(uint32_t weight, uint32_t share) {
  return (weight * share + kOne / 2 - 1) / kOne;
}

// Beyond the outermost centres in clamp mode, both texels are the same texel. It gets the whole
// weight.
Pair clamped(Pair pair, const Axis& axis) {
  const bool is_one = resolve(pair.first, axis) == resolve(pair.first + 1, axis);
  if (axis.mode == Address::kClamp && is_one) pair.weight = 0;
  return pair;
}

// The four texels around a point of one slice.
void add_slice(const Pair (&pairs)[3], const std::array<Axis, 3>& axes, int32_t slice,
               uint32_t whole, Footprint* footprint) {
  const std::array<uint32_t, 4> weights = split(whole, pairs[0].weight, pairs[1].weight);
  for (uint32_t corner = 0; corner < 4; ++corner) {
    footprint->add({resolve(pairs[0].first + (corner & 1), axes[0]),
                    resolve(pairs[1].first + (corner >> 1), axes[1]), slice, weights[corner]});
  }
}

}  // namespace

// Splits the weight first among the columns, then each column's weight among the rows.
std::array<uint32_t, 4> split(uint32_t whole, uint32_t right, uint32_t lower) {
  const uint32_t right_column = half_up(whole, right), left_column = whole - right_column;
  const uint32_t lower_right = half_up(right_column, lower);
  const uint32_t lower_left = half_down(left_column, lower);
  return {left_column - lower_left, right_column - lower_right, lower_left, lower_right};
}

Footprint nearest_texel(const Place& place, const std::array<Axis, 3>& axes, uint32_t whole) {
  int32_t at[3] = {0, 0, static_cast<int32_t>(place.slice)};
  for (uint32_t k = 0; k < place.axes; ++k) {
    at[k] = resolve(nearest(place.coordinates[k], axes[k]), axes[k]);
  }
  Footprint footprint;
  footprint.add({at[0], at[1], at[2], whole});
  return footprint;
}

Footprint enclosing_texels(const Place& place, const std::array<Axis, 3>& axes, uint32_t whole) {
  Pair pairs[3] = {};
  for (uint32_t k = 0; k < place.axes; ++k) {
    pairs[k] = clamped(enclosing(place.coordinates[k], axes[k]), axes[k]);
  }
  Footprint footprint;
  if (place.axes < 3) {
    add_slice(pairs, axes, static_cast<int32_t>(place.slice), whole, &footprint);
  } else {
    const uint32_t upper = half_up(whole, pairs[2].weight);
    add_slice(pairs, axes, resolve(pairs[2].first, axes[2]), whole - upper, &footprint);
    add_slice(pairs, axes, resolve(pairs[2].first + 1, axes[2]), upper, &footprint);
  }
  return footprint;
}

}  // namespace softgpu::texture
