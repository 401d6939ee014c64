// From a coordinate to texels along one axis.
//
// A position counts texels from the left edge, so the centre of texel i is at i + 0.5. Filtering
// uses positions with 8 bits of fraction, as the CUDA programming guide describes. Like an H100,
// these functions first truncate normalised coordinates to 21 bits of fraction. Pure functions, any
// thread; any float is a valid coordinate.
#pragma once

#include <cstdint>

namespace softgpu::texture {

enum class Address : uint8_t { kWrap, kClamp, kMirror, kBorder };

inline constexpr int kFractionBits = 8;
inline constexpr uint32_t kOne = 1u << kFractionBits;  // a weight of 1

struct Axis {
  Address mode = Address::kClamp;
  uint32_t size = 1;
  bool is_normalised = false;
};

inline constexpr int32_t kOutside = -1;

// The texel that `index` selects in the address mode, or kOutside (border mode).
int32_t resolve(int64_t index, const Axis& axis);

// The texel that contains the coordinate, before the address mode is applied.
int64_t nearest(float coordinate, const Axis& axis);

// The two texels whose centres enclose the coordinate, before the address mode is applied. The
// second is `first` + 1 and has the given weight, in 1/256.
struct Pair {
  int64_t first = 0;
  uint32_t weight = 0;
};
Pair enclosing(float coordinate, const Axis& axis);

}  // namespace softgpu::texture
