// Textures and surfaces as kernels see them: where their texels are, and how a read finds, converts
// and filters them.
//
// The driver makes these values from descriptors that it has checked (softgpu/driver/texture.h).
// They are constant afterwards and own no memory: the code that reads or writes texels first checks
// that the kernel may access [begin, end).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "softgpu/texture/address.h"
#include "softgpu/texture/format.h"

namespace softgpu::texture {

// One level. A slice is a slice of a volume, a layer, or a face of a cube map.
struct Image {
  uint64_t memory = 0;
  uint32_t width = 1, height = 1, slices = 1;
  uint64_t pitch_bytes = 0, slice_bytes = 0;

  // The coordinates must lie in the image.
  const std::byte* texel(uint32_t texel_bytes, uint32_t x, uint32_t y, uint32_t slice) const {
    return reinterpret_cast<const std::byte*>(memory + slice * slice_bytes + y * pitch_bytes +
                                              uint64_t{x} * texel_bytes);
  }
};

enum class Shape : uint8_t { k1d, k2d, k3d, k1dLayered, k2dLayered, kCube, kCubeLayered };

constexpr bool is_cube(Shape shape) {
  return shape == Shape::kCube || shape == Shape::kCubeLayered;
}
constexpr bool is_layered(Shape shape) {
  return shape == Shape::k1dLayered || shape == Shape::k2dLayered || shape == Shape::kCubeLayered;
}
// The number of coordinates, without the layer. A cube has three: a direction.
constexpr uint32_t axes_of(Shape shape) {
  if (shape == Shape::k1d || shape == Shape::k1dLayered) return 1;
  return shape == Shape::k2d || shape == Shape::k2dLayered ? 2 : 3;
}

struct Sampler {
  std::array<Address, 3> address = {Address::kClamp, Address::kClamp, Address::kClamp};
  bool is_normalised = false;   // coordinates from 0 to 1
  bool filters = false;         // linear instead of the nearest texel
  bool filters_levels = false;  // between two levels instead of the nearest level
  bool reads_integers = false;  // instead of floats; nothing is filtered
  bool srgb = false;
  bool is_seamless = false;  // cube maps: filters across edges
  float level_bias = 0, least_level = 0, greatest_level = 0;
  Words border = {};  // border mode: the result of a read outside of the texture
};

struct Texture {
  Format format;
  Sampler sampler;
  Shape shape = Shape::k2d;
  bool is_memory = false;  // linear memory: only fetch() reads it
  std::vector<Image> levels;
  uint64_t begin = 0, end = 0;  // all texels
};

struct Surface {
  Format format;
  Shape shape = Shape::k2d;
  Image image;
  uint64_t begin = 0, end = 0;
};

}  // namespace softgpu::texture
