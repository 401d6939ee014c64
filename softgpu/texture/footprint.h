// The texels that one read takes from one level, with their weights.
//
// Weights are whole numbers of 1/256: the products of the axes' weights are rounded as on an H100,
// so that they add up to the weight of the whole level. Pure functions, any thread.
#pragma once

#include <array>
#include <cstdint>

#include "softgpu/texture/address.h"

namespace softgpu::texture {

struct Tap {
  int32_t x = 0, y = 0, slice = 0;  // kOutside on any axis: the border
  uint32_t weight = kOne;

  bool is_border() const { return x == kOutside || y == kOutside || slice == kOutside; }
};

struct Footprint {
  std::array<Tap, 8> taps;
  uint32_t count = 0;

  void add(const Tap& tap) { taps[count++] = tap; }
};

// Where a read looks, on 1 to 3 axes. With fewer than 3, `slice` names the layer or face.
struct Place {
  std::array<float, 3> coordinates = {};
  uint32_t axes = 1;
  uint32_t slice = 0;
};

// Splits a weight among four texels, in the order (x, y), (x + 1, y), (x, y + 1), (x + 1, y + 1).
// `right` and `lower` are the shares of x + 1 and y + 1, in 1/256.
std::array<uint32_t, 4> split(uint32_t whole, uint32_t right, uint32_t lower);

// `whole` is the weight of all taps together.
Footprint nearest_texel(const Place& place, const std::array<Axis, 3>& axes, uint32_t whole);
// Four taps in the order of split(); with three axes, four on each of two slices.
Footprint enclosing_texels(const Place& place, const std::array<Axis, 3>& axes, uint32_t whole);

}  // namespace softgpu::texture
