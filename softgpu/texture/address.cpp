#include "softgpu/texture/address.h"

#include <algorithm>
#include <cmath>

namespace softgpu::texture {
namespace {

// A position beyond every texture. As a fixed-point number (enclosing()), it fits into 64 bits.
constexpr double kFar = 1 << 30;

// Normalised coordinates are truncated to multiples of 1/kNormalisedSteps.
constexpr double kNormalisedSteps = 1 << 21;

// The position of a coordinate in texels. In the periodic modes, the coordinate is reduced to
// the first period while it is still exact.
double position_of(float coordinate, const Axis& axis) {
  double at = static_cast<double>(coordinate);
  if (axis.is_normalised) {
    if (axis.mode == Address::kWrap) at -= std::floor(at);
    if (axis.mode == Address::kMirror) at -= 2 * std::floor(at / 2);
    at = std::floor(at * kNormalisedSteps) / kNormalisedSteps * axis.size;
  }
  if (std::isnan(at)) return 0;  // the coordinate is NaN, or infinite in a periodic mode
  return std::clamp(at, -kFar, kFar);
}

// The remainder of a division, never negative.
int64_t modulo(int64_t value, int64_t divisor) {
  const int64_t rest = value % divisor;
  return rest < 0 ? rest + divisor : rest;
}

}  // namespace

int32_t resolve(int64_t index, const Axis& axis) {
  const int64_t size = axis.size;
  switch (axis.mode) {
    case Address::kWrap:
      return static_cast<int32_t>(modulo(index, size));
    case Address::kMirror: {
      const int64_t in_period = modulo(index, 2 * size);
      return static_cast<int32_t>(std::min(in_period, 2 * size - 1 - in_period));
    }
    case Address::kBorder:
      return index < 0 || index >= size ? kOutside : static_cast<int32_t>(index);
    case Address::kClamp:
      break;
  }
  return static_cast<int32_t>(std::clamp<int64_t>(index, 0, size - 1));
}

int64_t nearest(float coordinate, const Axis& axis) {
  return static_cast<int64_t>(std::floor(position_of(coordinate, axis)));
}

Pair enclosing(float coordinate, const Axis& axis) {
  const double centred = position_of(coordinate, axis) - 0.5;
  const auto fixed = static_cast<int64_t>(std::floor(centred * kOne + 0.5));
  return {fixed >> kFractionBits, static_cast<uint32_t>(fixed & (kOne - 1))};
}

}  // namespace softgpu::texture
