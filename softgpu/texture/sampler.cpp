#include "softgpu/texture/sampler.h"

#include <algorithm>
#include <bit>

#include "softgpu/texture/cube.h"
#include "softgpu/texture/footprint.h"
#include "softgpu/texture/level.h"

namespace softgpu::texture {
namespace {

constexpr uint32_t kFaces = 6;

std::array<Axis, 3> axes_in(const Texture& texture, const Image& image) {
  const Sampler& sampler = texture.sampler;
  return {Axis{sampler.address[0], image.width, sampler.is_normalised},
          Axis{sampler.address[1], image.height, sampler.is_normalised},
          Axis{sampler.address[2], image.slices, sampler.is_normalised}};
}

// The slice of a layer: of its first face, for a cube.
uint32_t slice_of(const Image& image, Shape shape, uint32_t layer) {
  const uint32_t per_layer = is_cube(shape) ? kFaces : 1;
  const uint32_t layers = std::max(image.slices / per_layer, 1u);
  return is_layered(shape) ? std::min(layer, layers - 1) * per_layer : 0;
}

// Whether reads with float coordinates find texels.
bool is_sampled(const Texture& texture) {
  const Image& image = texture.levels[0];
  return !texture.is_memory && image.width != 0 && image.height != 0;
}

// The texels of one level that the point covers, with the level's weight. `wide`: the enclosing
// texels, for a filter.
Footprint footprint_of(const Texture& texture, const Image& image, const Point& point, bool wide,
                       uint32_t weight) {
  Place place{point.at, axes_of(point.shape), slice_of(image, point.shape, point.layer)};
  std::array<Axis, 3> axes = axes_in(texture, image);
  // As on an H100, a one-dimensional texture is a two-dimensional texture that is read at y = 0. If
  // y has the border mode, half of a filter's weight falls on the border. A one-dimensional layered
  // texture is read on one axis only, because its rows are the layers.
  if (point.shape == Shape::k1d) place.axes = 2;
  if (is_cube(point.shape)) {
    const FacePoint on_face = face_of(point.at[0], point.at[1], point.at[2]);
    const bool complete = place.slice + kFaces <= image.slices && image.width == image.height;
    if (texture.sampler.is_seamless && wide && complete) {
      return seamless_texels(on_face, image.width, place.slice, weight);
    }
    place.coordinates = {on_face.s, on_face.t, 0};
    place.axes = 2;
    place.slice = std::min(place.slice + on_face.face, image.slices - 1);
    axes[0].is_normalised = axes[1].is_normalised = true;
    if (texture.sampler.is_seamless) axes[0].mode = axes[1].mode = Address::kClamp;
  }
  return wide ? enclosing_texels(place, axes, weight) : nearest_texel(place, axes, weight);
}

Color color_at(const Texture& texture, const Image& image, const Tap& tap) {
  if (tap.is_border()) return std::bit_cast<Color>(texture.sampler.border);
  const std::byte* texel =
      image.texel(texture.format.texel_bytes(), static_cast<uint32_t>(tap.x),
                  static_cast<uint32_t>(tap.y), static_cast<uint32_t>(tap.slice));
  return floats_of(texture.format, texture.sampler.srgb, texel);
}

Words integers_at(const Texture& texture, const Image& image, const Tap& tap) {
  if (tap.is_border()) return texture.sampler.border;
  return integers_of(texture.format,
                     image.texel(texture.format.texel_bytes(), static_cast<uint32_t>(tap.x),
                                 static_cast<uint32_t>(tap.y), static_cast<uint32_t>(tap.slice)));
}

Words words_at(const Texture& texture, const Image& image, const Tap& tap) {
  return texture.sampler.reads_integers
             ? integers_at(texture, image, tap)
             : words_of(limited(texture.format, color_at(texture, image, tap)));
}

using Sum = std::array<double, 4>;
void add(Sum* sum, const Color& color, uint32_t weight) {
  const double share = static_cast<double>(weight) / kOne;
  for (size_t c = 0; c < 4; ++c) (*sum)[c] += share * static_cast<double>(color[c]);
}

void add_level(const Texture& texture, uint32_t level, const Point& point, uint32_t weight,
               Sum* sum) {
  const Image& image = texture.levels[level];
  const Footprint footprint = footprint_of(texture, image, point, texture.sampler.filters, weight);
  // A texel without weight contributes nothing, not even its infinities.
  for (uint32_t k = 0; k < footprint.count; ++k) {
    const Tap& tap = footprint.taps[k];
    if (tap.weight != 0) add(sum, color_at(texture, image, tap), tap.weight);
  }
}

}  // namespace

Words sample(const Texture& texture, const Point& point, float level) {
  if (!is_sampled(texture)) return {};
  const Levels levels = levels_of(texture, level);
  if (texture.sampler.reads_integers || (!texture.sampler.filters && levels.weight == 0)) {
    const Image& image = texture.levels[levels.first];
    return words_at(texture, image, footprint_of(texture, image, point, false, kOne).taps[0]);
  }
  Sum sum = {};
  add_level(texture, levels.first, point, kOne - levels.weight, &sum);
  if (levels.weight != 0) add_level(texture, levels.first + 1, point, levels.weight, &sum);
  return words_of(filtered(texture.format, texture.sampler.srgb, sum));
}

float level_for_steps(const Texture& texture, const Point& point, const std::array<float, 3>& dx,
                      const std::array<float, 3>& dy) {
  return level_for_steps(texture, dx, dy, axes_of(point.shape));
}

Words fetch(const Texture& texture, Shape shape, const std::array<int32_t, 3>& at, uint32_t layer,
            int32_t level) {
  if (level < 0 || static_cast<size_t>(level) >= texture.levels.size()) return {};
  const Image& image = texture.levels[static_cast<size_t>(level)];
  const uint32_t axes = axes_of(shape);
  const uint32_t sizes[3] = {image.width, image.height, image.slices};
  Tap tap{0, 0, static_cast<int32_t>(slice_of(image, shape, layer)), 1};
  int32_t* const to[3] = {&tap.x, &tap.y, &tap.slice};
  for (uint32_t k = 0; k < axes; ++k) {
    if (at[k] < 0 || static_cast<uint32_t>(at[k]) >= sizes[k]) return {};
    *to[k] = at[k];
  }
  return words_at(texture, image, tap);
}

Words gather(const Texture& texture, const Point& point, uint32_t channel) {
  constexpr uint32_t kOrder[] = {2, 3, 1, 0};
  if (!is_sampled(texture)) return {};
  const Image& image = texture.levels[0];
  const Footprint footprint = footprint_of(texture, image, point, true, kOne);
  Words words = {};
  for (size_t k = 0; k < 4; ++k) {
    if (kOrder[k] >= footprint.count) continue;
    words[k] = words_at(texture, image, footprint.taps[kOrder[k]])[channel];
  }
  return words;
}

}  // namespace softgpu::texture
