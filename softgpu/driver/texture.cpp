#include "softgpu/driver/texture.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <utility>

#include "softgpu/driver/array.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/texture/objects.h"

namespace softgpu::driver {
namespace {

using texture::Image;
using texture::Shape;
using texture::Texture;

// Two of these bits have no name; NVIDIA's driver accepts them too.
constexpr unsigned kSamplerFlags = 0x7f;

Shape shape_of(const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  switch (kind_of(descriptor)) {
    case ArrayKind::k1d:
      return Shape::k1d;
    case ArrayKind::k2d:
      return Shape::k2d;
    case ArrayKind::k3d:
      return Shape::k3d;
    case ArrayKind::k1dLayered:
      return Shape::k1dLayered;
    case ArrayKind::k2dLayered:
      return Shape::k2dLayered;
    case ArrayKind::kCubemap:
      return Shape::kCube;
    case ArrayKind::kCubemapLayered:
      break;
  }
  return Shape::kCubeLayered;
}

Image image_of(const Array& array) {
  return {array.memory,
          static_cast<uint32_t>(array.descriptor.Width),
          static_cast<uint32_t>(array.rows()),
          static_cast<uint32_t>(array.slices()),
          array.pitch_bytes(),
          array.slice_bytes()};
}

size_t limit(const Device& device, CUdevice_attribute attribute) {
  return static_cast<size_t>(device.attribute(attribute).value_or(1));
}

bool is_aligned(const Device& device, uint64_t value, CUdevice_attribute attribute) {
  return value % std::max<size_t>(limit(device, attribute), 1) == 0;
}

void describe_array(const Array& array, Texture* made) {
  made->format = array.format;
  made->shape = shape_of(array.descriptor);
  made->levels = {image_of(array)};
  made->begin = array.memory;
  made->end = array.memory + array.bytes();
}

void describe_mipmapped_array(const MipmappedArray& array, Texture* made) {
  describe_array(*array.levels[0], made);
  made->shape = shape_of(array.descriptor);
  for (size_t level = 1; level < array.levels.size(); ++level) {
    made->levels.push_back(image_of(*array.levels[level]));
  }
  made->end = array.levels.back()->memory + array.levels.back()->bytes();
}

CUresult describe_linear(const Device& device, const CUDA_RESOURCE_DESC& resource, Texture* made) {
  const auto& linear = resource.res.linear;
  const auto format = texture::format_of(linear.format, linear.numChannels);
  if (!format || linear.devPtr == 0 ||
      !is_aligned(device, linear.devPtr, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const size_t texels = std::min<size_t>(linear.sizeInBytes / format->texel_bytes(),
                                         std::numeric_limits<int32_t>::max());
  made->format = *format;
  made->shape = Shape::k1d;
  made->is_memory = true;
  made->levels = {{linear.devPtr, static_cast<uint32_t>(texels), 1, 1, 0, 0}};
  made->begin = linear.devPtr;
  made->end = linear.devPtr + texels * format->texel_bytes();
  return CUDA_SUCCESS;
}

CUresult describe_pitched(const Device& device, const CUDA_RESOURCE_DESC& resource, Texture* made) {
  const auto& pitched = resource.res.pitch2D;
  const auto format = texture::format_of(pitched.format, pitched.numChannels);
  const auto within = [&](size_t value, CUdevice_attribute attribute) {
    return value <= limit(device, attribute);
  };
  if (!format || pitched.devPtr == 0 ||
      !within(pitched.width, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH) ||
      !within(pitched.height, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT) ||
      !within(pitched.pitchInBytes, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH) ||
      !is_aligned(device, pitched.devPtr, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT) ||
      !is_aligned(device, pitched.pitchInBytes, CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  made->format = *format;
  made->shape = Shape::k2d;
  made->levels = {{pitched.devPtr, static_cast<uint32_t>(pitched.width),
                   static_cast<uint32_t>(pitched.height), 1, pitched.pitchInBytes, 0}};
  made->begin = pitched.devPtr;
  made->end = made->begin;
  if (pitched.width != 0 && pitched.height != 0) {
    made->end +=
        (pitched.height - 1) * pitched.pitchInBytes + pitched.width * format->texel_bytes();
  }
  return CUDA_SUCCESS;
}

CUresult describe_resource(const Device& device, const CUDA_RESOURCE_DESC& resource,
                           Texture* made) {
  if (resource.flags != 0) return CUDA_ERROR_INVALID_VALUE;
  switch (resource.resType) {
    case CU_RESOURCE_TYPE_ARRAY: {
      const auto array = array_from_handle(resource.res.array.hArray);
      if (!array) return CUDA_ERROR_INVALID_VALUE;
      describe_array(*array, made);
      return CUDA_SUCCESS;
    }
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: {
      const auto array = handle_table<MipmappedArray>().find(resource.res.mipmap.hMipmappedArray);
      if (!array) return CUDA_ERROR_INVALID_VALUE;
      describe_mipmapped_array(*array, made);
      return CUDA_SUCCESS;
    }
    case CU_RESOURCE_TYPE_LINEAR:
      return describe_linear(device, resource, made);
    case CU_RESOURCE_TYPE_PITCH2D:
      return describe_pitched(device, resource, made);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// Restricts the texture to the view's levels and layers, in the view's format.
CUresult apply_view(const CUDA_RESOURCE_VIEW_DESC& view, Texture* made) {
  const auto format = texture::format_of(view.format);
  if (!format || format->texel_bytes() != made->format.texel_bytes()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  made->format = *format;
  const Image& whole = made->levels[0];
  const bool is_flat = made->shape == Shape::k1d || made->shape == Shape::k1dLayered;
  if (view.width != whole.width || view.height != (is_flat ? 0 : whole.height)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const size_t levels = made->levels.size();
  if (view.firstMipmapLevel > view.lastMipmapLevel || view.firstMipmapLevel >= levels ||
      (levels == 1 && view.lastMipmapLevel != 0) || view.firstLayer > view.lastLayer ||
      view.lastLayer >= whole.slices) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool has_layers =
      made->shape != Shape::k1d && made->shape != Shape::k2d && made->shape != Shape::k3d;
  if (!has_layers && view.lastLayer != 0) return CUDA_ERROR_INVALID_VALUE;
  const size_t end = std::min(size_t{view.lastMipmapLevel} + 1, levels);
  made->levels = {made->levels.begin() + view.firstMipmapLevel,
                  made->levels.begin() + static_cast<ptrdiff_t>(end)};
  for (Image& level : made->levels) {
    if (!has_layers) break;
    level.memory += view.firstLayer * level.slice_bytes;
    level.slices = view.lastLayer - view.firstLayer + 1;
  }
  return CUDA_SUCCESS;
}

bool is_address_mode(CUaddress_mode mode) {
  return mode >= CU_TR_ADDRESS_MODE_WRAP && mode <= CU_TR_ADDRESS_MODE_BORDER;
}
bool is_filter_mode(CUfilter_mode mode) {
  return mode == CU_TR_FILTER_MODE_POINT || mode == CU_TR_FILTER_MODE_LINEAR;
}

// The periodic modes need normalised coordinates; without them the edge texel repeats.
texture::Address address_of(CUaddress_mode mode, bool is_normalised) {
  const auto address = static_cast<texture::Address>(mode);
  const bool is_periodic =
      address == texture::Address::kWrap || address == texture::Address::kMirror;
  return is_periodic && !is_normalised ? texture::Address::kClamp : address;
}

// Integers of 32 bits are never converted to floats.
bool reads_integers(const CUDA_TEXTURE_DESC& given, const texture::Format& format) {
  if (format.numbers == texture::Numbers::kFloat || format.is_normalised) return false;
  return (given.flags & CU_TRSF_READ_AS_INTEGER) != 0 || format.channel_bytes == 4;
}

CUresult describe_sampler(const CUDA_TEXTURE_DESC& given, Texture* made) {
  texture::Sampler& sampler = made->sampler;
  if ((given.flags & ~kSamplerFlags) != 0 || !is_filter_mode(given.filterMode) ||
      !is_filter_mode(given.mipmapFilterMode)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  sampler.is_normalised = (given.flags & CU_TRSF_NORMALIZED_COORDINATES) != 0;
  for (size_t axis = 0; axis < 3; ++axis) {
    if (!is_address_mode(given.addressMode[axis])) return CUDA_ERROR_INVALID_VALUE;
    sampler.address[axis] = address_of(given.addressMode[axis], sampler.is_normalised);
  }
  sampler.reads_integers = reads_integers(given, made->format);
  sampler.filters = given.filterMode == CU_TR_FILTER_MODE_LINEAR && !made->is_memory;
  sampler.filters_levels = given.mipmapFilterMode == CU_TR_FILTER_MODE_LINEAR;
  sampler.srgb = (given.flags & CU_TRSF_SRGB) != 0 && made->format.channel_bytes == 1 &&
                 made->format.numbers == texture::Numbers::kUnsigned;
  sampler.is_seamless = (given.flags & CU_TRSF_SEAMLESS_CUBEMAP) != 0;
  sampler.level_bias = given.mipmapLevelBias;
  sampler.least_level = given.minMipmapLevelClamp;
  sampler.greatest_level = given.maxMipmapLevelClamp;
  sampler.border =
      texture::border_words(made->format, sampler.reads_integers, std::to_array(given.borderColor));
  return CUDA_SUCCESS;
}

}  // namespace

CUresult texture_of(const Device& device, const CUDA_RESOURCE_DESC& resource,
                    const CUDA_TEXTURE_DESC& sampler, const CUDA_RESOURCE_VIEW_DESC* view,
                    Texture* made) {
  if (CUresult result = describe_resource(device, resource, made)) return result;
  const bool is_array = resource.resType == CU_RESOURCE_TYPE_ARRAY ||
                        resource.resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
  if (view && is_array) {
    if (CUresult result = apply_view(*view, made)) return result;
  }
  if (CUresult result = describe_sampler(sampler, made)) return result;
  const bool is_cube = made->shape == Shape::kCube || made->shape == Shape::kCubeLayered;
  if (made->sampler.is_seamless && !is_cube) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult surface_of(const CUDA_RESOURCE_DESC& resource, texture::Surface* made) {
  if (resource.resType != CU_RESOURCE_TYPE_ARRAY || resource.flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto array = array_from_handle(resource.res.array.hArray);
  if (!array) return CUDA_ERROR_INVALID_VALUE;
  made->format = array->format;
  made->shape = shape_of(array->descriptor);
  made->image = image_of(*array);
  made->begin = array->memory;
  made->end = array->memory + array->bytes();
  return CUDA_SUCCESS;
}

// The tables live as long as the process, like all tables of handles.
ObjectTable<TextureObject>& texture_objects() {
  static auto* table = new ObjectTable<TextureObject>;
  return *table;
}
ObjectTable<SurfaceObject>& surface_objects() {
  static auto* table = new ObjectTable<SurfaceObject>;
  return *table;
}

void destroy_textures_of(const Context& context) {
  for (const uint64_t handle : texture_objects().remove_of(context)) {
    texture::objects().remove(handle);
  }
  for (const uint64_t handle : surface_objects().remove_of(context)) {
    texture::objects().remove(handle);
  }
}

}  // namespace softgpu::driver
