#include "softgpu/texture/cube.h"

#include <algorithm>
#include <cmath>

namespace softgpu::texture {
namespace {

struct Direction {
  double x, y, z;
};

// The direction of the point (s, t) of a face. s and t are from -1 to 1 on the face; a point
// outside of this range lies beyond an edge.
Direction direction_of(uint32_t face, double s, double t) {
  switch (face) {
    case 0:
      return {1, -t, -s};
    case 1:
      return {-1, -t, s};
    case 2:
      return {s, 1, t};
    case 3:
      return {s, -1, -t};
    case 4:
      return {s, -t, 1};
    default:
      return {-s, -t, -1};
  }
}

struct OnFace {
  uint32_t face;
  double s, t;  // -1 to 1
};

OnFace project(const Direction& d) {
  const double x = std::fabs(d.x), y = std::fabs(d.y), z = std::fabs(d.z);
  if (z >= x && z >= y) {
    return d.z < 0 ? OnFace{5, -d.x / z, -d.y / z} : OnFace{4, d.x / z, -d.y / z};
  }
  if (y >= x) return d.y < 0 ? OnFace{3, d.x / y, -d.z / y} : OnFace{2, d.x / y, d.z / y};
  return d.x < 0 ? OnFace{1, d.z / x, -d.y / x} : OnFace{0, -d.z / x, -d.y / x};
}

// The texel of a neighbouring face that continues a face beyond one edge.
Tap across_edge(uint32_t face, int64_t x, int64_t y, uint32_t size, uint32_t first_slice) {
  // A point just beyond the edge projects into the neighbour's texels next to the edge.
  const auto along = [&](int64_t i) { return (2 * static_cast<double>(i) + 1) / size - 1; };
  const auto beyond = [&](int64_t i) {
    return i < 0 ? -1 - 1e-6 : i >= size ? 1 + 1e-6 : along(i);
  };
  const OnFace there = project(direction_of(face, beyond(x), beyond(y)));
  const auto texel = [&](double coordinate) {
    const auto index = static_cast<int32_t>(std::floor((coordinate + 1) / 2 * size));
    return std::clamp(index, 0, static_cast<int32_t>(size) - 1);
  };
  return {texel(there.s), texel(there.t), static_cast<int32_t>(first_slice + there.face), 0};
}

}  // namespace

FacePoint face_of(float x, float y, float z) {
  const OnFace at =
      project({static_cast<double>(x), static_cast<double>(y), static_cast<double>(z)});
  const auto unit = [](double v) { return static_cast<float>((v + 1) / 2); };
  if (std::isnan(at.s) || std::isnan(at.t)) return {at.face, 0.5f, 0.5f};
  return {at.face, unit(at.s), unit(at.t)};
}

Footprint seamless_texels(const FacePoint& point, uint32_t size, uint32_t first_slice,
                          uint32_t whole) {
  const Axis axis{Address::kClamp, size, true};
  const Pair across = enclosing(point.s, axis), down = enclosing(point.t, axis);
  const auto outside = [&](int64_t i) { return i < 0 || i >= static_cast<int64_t>(size); };
  const std::array<uint32_t, 4> weights = split(whole, across.weight, down.weight);
  Footprint footprint;
  uint32_t missing = 0;  // at a corner of the cube: the weight of the texel that does not exist
  for (uint32_t corner = 0; corner < 4; ++corner) {
    const int64_t x = across.first + (corner & 1), y = down.first + (corner >> 1);
    if (outside(x) && outside(y)) {
      missing = weights[corner];
      continue;
    }
    Tap tap{static_cast<int32_t>(x), static_cast<int32_t>(y),
            static_cast<int32_t>(first_slice + point.face), 0};
    if (outside(x) || outside(y)) tap = across_edge(point.face, x, y, size, first_slice);
    tap.weight = weights[corner];
    footprint.add(tap);
  }
  // The weight of the missing texel is divided by three; the texel on the face itself gets the
  // remainder.
  for (uint32_t k = 0; k < footprint.count && missing != 0; ++k) {
    Tap& tap = footprint.taps[k];
    const bool is_own = tap.slice == static_cast<int32_t>(first_slice + point.face);
    tap.weight += is_own ? missing - missing / 3 * 2 : missing / 3;
  }
  return footprint;
}

}  // namespace softgpu::texture
