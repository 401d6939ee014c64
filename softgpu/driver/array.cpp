#include "softgpu/driver/array.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/sparse.h"

namespace softgpu::driver {
namespace {

constexpr size_t kLevelAlignment = 512;

constexpr unsigned kFlagsKnown = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST |
                                 CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_TEXTURE_GATHER |
                                 CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_VIDEO_ENCODE_DECODE;
constexpr unsigned kFlagsLacking = CUDA_ARRAY3D_DEFERRED_MAPPING;

bool has_flag(const CUDA_ARRAY3D_DESCRIPTOR& descriptor, unsigned flag) {
  return (descriptor.Flags & flag) != 0;
}

// The device attributes that hold the largest extents of a kind. 0: the extent must be 0.
struct Limits {
  int width = 0, height = 0, depth = 0;
};

#define LIMIT(name) CU_DEVICE_ATTRIBUTE_MAXIMUM_##name

Limits texture_limits(ArrayKind kind) {
  switch (kind) {
    case ArrayKind::k1d:
      return {LIMIT(TEXTURE1D_WIDTH)};
    case ArrayKind::k2d:
      return {LIMIT(TEXTURE2D_WIDTH), LIMIT(TEXTURE2D_HEIGHT)};
    case ArrayKind::k3d:
      return {LIMIT(TEXTURE3D_WIDTH), LIMIT(TEXTURE3D_HEIGHT), LIMIT(TEXTURE3D_DEPTH)};
    case ArrayKind::k1dLayered:
      return {LIMIT(TEXTURE1D_LAYERED_WIDTH), 0, LIMIT(TEXTURE1D_LAYERED_LAYERS)};
    case ArrayKind::k2dLayered:
      return {LIMIT(TEXTURE2D_LAYERED_WIDTH), LIMIT(TEXTURE2D_LAYERED_HEIGHT),
              LIMIT(TEXTURE2D_LAYERED_LAYERS)};
    case ArrayKind::kCubemap:
      return {LIMIT(TEXTURECUBEMAP_WIDTH), LIMIT(TEXTURECUBEMAP_WIDTH),
              LIMIT(TEXTURECUBEMAP_LAYERED_LAYERS)};
    case ArrayKind::kCubemapLayered:
      return {LIMIT(TEXTURECUBEMAP_LAYERED_WIDTH), LIMIT(TEXTURECUBEMAP_LAYERED_WIDTH),
              LIMIT(TEXTURECUBEMAP_LAYERED_LAYERS)};
  }
  return {};
}

Limits surface_limits(ArrayKind kind) {
  switch (kind) {
    case ArrayKind::k1d:
      return {LIMIT(SURFACE1D_WIDTH)};
    case ArrayKind::k2d:
      return {LIMIT(SURFACE2D_WIDTH), LIMIT(SURFACE2D_HEIGHT)};
    case ArrayKind::k3d:
      return {LIMIT(SURFACE3D_WIDTH), LIMIT(SURFACE3D_HEIGHT), LIMIT(SURFACE3D_DEPTH)};
    case ArrayKind::k1dLayered:
      return {LIMIT(SURFACE1D_LAYERED_WIDTH), 0, LIMIT(SURFACE1D_LAYERED_LAYERS)};
    case ArrayKind::k2dLayered:
      return {LIMIT(SURFACE2D_LAYERED_WIDTH), LIMIT(SURFACE2D_LAYERED_HEIGHT),
              LIMIT(SURFACE2D_LAYERED_LAYERS)};
    case ArrayKind::kCubemap:
      return {LIMIT(SURFACECUBEMAP_WIDTH), LIMIT(SURFACECUBEMAP_WIDTH),
              LIMIT(SURFACECUBEMAP_LAYERED_LAYERS)};
    case ArrayKind::kCubemapLayered:
      return {LIMIT(SURFACECUBEMAP_LAYERED_WIDTH), LIMIT(SURFACECUBEMAP_LAYERED_WIDTH),
              LIMIT(SURFACECUBEMAP_LAYERED_LAYERS)};
  }
  return {};
}

Limits mipmapped_limits(ArrayKind kind) {
  switch (kind) {
    case ArrayKind::k1d:
      return {LIMIT(TEXTURE1D_MIPMAPPED_WIDTH)};
    case ArrayKind::k2d:
      return {LIMIT(TEXTURE2D_MIPMAPPED_WIDTH), LIMIT(TEXTURE2D_MIPMAPPED_HEIGHT)};
    default:
      return texture_limits(kind);
  }
}

constexpr Limits kGatherLimits = {LIMIT(TEXTURE2D_GATHER_WIDTH), LIMIT(TEXTURE2D_GATHER_HEIGHT)};
constexpr Limits kAlternate3d = {LIMIT(TEXTURE3D_WIDTH_ALTERNATE),
                                 LIMIT(TEXTURE3D_HEIGHT_ALTERNATE),
                                 LIMIT(TEXTURE3D_DEPTH_ALTERNATE)};
#undef LIMIT

bool fits(const Device& device, const CUDA_ARRAY3D_DESCRIPTOR& descriptor, const Limits& limits) {
  const auto within = [&](size_t extent, int attribute) {
    const int most =
        attribute ? device.attribute(static_cast<CUdevice_attribute>(attribute)).value_or(0) : 0;
    return extent <= static_cast<size_t>(most);
  };
  return within(descriptor.Width, limits.width) && within(descriptor.Height, limits.height) &&
         within(descriptor.Depth, limits.depth);
}

bool extents_fit(const Device& device, const CUDA_ARRAY3D_DESCRIPTOR& descriptor,
                 bool is_mipmapped) {
  const ArrayKind kind = kind_of(descriptor);
  const bool as_texture =
      fits(device, descriptor, is_mipmapped ? mipmapped_limits(kind) : texture_limits(kind)) ||
      (kind == ArrayKind::k3d && fits(device, descriptor, kAlternate3d));
  if (!as_texture) return false;
  if (has_flag(descriptor, CUDA_ARRAY3D_SURFACE_LDST) &&
      !fits(device, descriptor, surface_limits(kind))) {
    return false;
  }
  return !has_flag(descriptor, CUDA_ARRAY3D_TEXTURE_GATHER) ||
         (kind == ArrayKind::k2d && fits(device, descriptor, kGatherLimits));
}

// Checks the relations between extents, which the limits do not express.
bool shape_is_valid(const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  if (descriptor.Width == 0) return false;
  if (has_flag(descriptor, CUDA_ARRAY3D_SPARSE) && descriptor.Height == 0) return false;
  switch (kind_of(descriptor)) {
    case ArrayKind::k3d:
      return descriptor.Height != 0;
    case ArrayKind::k1dLayered:
    case ArrayKind::k2dLayered:
      return descriptor.Depth != 0;
    case ArrayKind::kCubemap:
      return descriptor.Width == descriptor.Height && descriptor.Depth == 6;
    case ArrayKind::kCubemapLayered:
      return descriptor.Width == descriptor.Height && descriptor.Depth != 0 &&
             descriptor.Depth % 6 == 0;
    default:
      return true;
  }
}

size_t extent_of_level(size_t extent, unsigned level) {
  return extent == 0 ? 0 : std::max<size_t>(extent >> level, 1);
}

CUDA_ARRAY3D_DESCRIPTOR level_descriptor(const CUDA_ARRAY3D_DESCRIPTOR& whole, unsigned level) {
  CUDA_ARRAY3D_DESCRIPTOR descriptor = whole;
  descriptor.Width = extent_of_level(whole.Width, level);
  descriptor.Height = extent_of_level(whole.Height, level);
  if (kind_of(whole) == ArrayKind::k3d) descriptor.Depth = extent_of_level(whole.Depth, level);
  return descriptor;
}

// Makes the description of an array, which has no memory yet.
std::shared_ptr<Array> describe_array(Context& context, const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  auto array = std::make_shared<Array>();
  array->context = &context;
  array->descriptor = descriptor;
  array->format = *texture::format_of(descriptor.Format, descriptor.NumChannels);
  array->element_bytes = array->format.texel_bytes();
  return array;
}

}  // namespace

ArrayKind kind_of(const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  const bool layered = has_flag(descriptor, CUDA_ARRAY3D_LAYERED);
  if (has_flag(descriptor, CUDA_ARRAY3D_CUBEMAP)) {
    return layered ? ArrayKind::kCubemapLayered : ArrayKind::kCubemap;
  }
  if (layered) return descriptor.Height == 0 ? ArrayKind::k1dLayered : ArrayKind::k2dLayered;
  if (descriptor.Depth != 0) return ArrayKind::k3d;
  return descriptor.Height == 0 ? ArrayKind::k1d : ArrayKind::k2d;
}

CUresult check_array(const Device& device, const CUDA_ARRAY3D_DESCRIPTOR& descriptor,
                     bool is_mipmapped) {
  if (!texture::format_of(descriptor.Format, descriptor.NumChannels)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (descriptor.Flags & ~(kFlagsKnown | kFlagsLacking)) return CUDA_ERROR_INVALID_VALUE;
  if (descriptor.Flags & kFlagsLacking) return CUDA_ERROR_NOT_SUPPORTED;
  if (!shape_is_valid(descriptor) || !extents_fit(device, descriptor, is_mipmapped)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

unsigned most_levels(const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  size_t longest = std::max(descriptor.Width, descriptor.Height);
  if (kind_of(descriptor) == ArrayKind::k3d) longest = std::max(longest, descriptor.Depth);
  return static_cast<unsigned>(std::bit_width(longest));
}

CUresult make_array(Context& context, const CUDA_ARRAY3D_DESCRIPTOR& descriptor,
                    std::shared_ptr<Array>* made) {
  std::shared_ptr<Array> array = describe_array(context, descriptor);
  size_t bytes = array->bytes();
  if (has_flag(descriptor, CUDA_ARRAY3D_SPARSE))
    array->tiles = lay_out_tiles({array}, false, &bytes);
  if (CUresult result =
          allocate_device_memory(context, bytes, MemoryKind::kModule, &array->memory)) {
    return result;
  }
  handle_table<Array>().insert(array);
  *made = std::move(array);
  return CUDA_SUCCESS;
}

CUresult make_mipmapped_array(Context& context, const CUDA_ARRAY3D_DESCRIPTOR& descriptor,
                              unsigned levels, std::shared_ptr<MipmappedArray>* made) {
  auto whole = std::make_shared<MipmappedArray>();
  whole->context = &context;
  whole->descriptor = descriptor;
  size_t bytes = 0;
  for (unsigned level = 0; level < levels; ++level) {
    std::shared_ptr<Array> array = describe_array(context, level_descriptor(descriptor, level));
    array->level_of = whole.get();
    array->memory = bytes;  // an offset, until the memory exists
    bytes += (array->bytes() + kLevelAlignment - 1) / kLevelAlignment * kLevelAlignment;
    whole->levels.push_back(std::move(array));
  }
  if (has_flag(descriptor, CUDA_ARRAY3D_SPARSE)) {
    whole->tiles = lay_out_tiles(whole->levels, true, &bytes);
  }
  if (CUresult result =
          allocate_device_memory(context, bytes, MemoryKind::kModule, &whole->memory)) {
    return result;
  }
  for (const std::shared_ptr<Array>& array : whole->levels) {
    array->memory += whole->memory;
    handle_table<Array>().insert(array);
  }
  handle_table<MipmappedArray>().insert(whole);
  *made = std::move(whole);
  return CUDA_SUCCESS;
}

std::shared_ptr<Array> array_from_handle(CUarray handle) {
  return handle_table<Array>().find(handle);
}

void destroy_arrays_of(Context& context) {
  handle_table<Array>().remove_if([&](const Array& array) { return array.context == &context; });
  handle_table<MipmappedArray>().remove_if(
      [&](const MipmappedArray& array) { return array.context == &context; });
}

}  // namespace softgpu::driver
