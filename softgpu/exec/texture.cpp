#include "softgpu/exec/texture.h"

#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "softgpu/exec/lanes.h"
#include "softgpu/exec/memory.h"
#include "softgpu/texture/objects.h"
#include "softgpu/texture/sampler.h"

namespace softgpu::exec {
namespace {

using texture::Shape;
using texture::Surface;
using texture::Texture;

template <class T>
T from_imm(const Instr& i) {
  T value;
  std::memcpy(static_cast<void*>(&value), &i.imm, sizeof value);
  return value;
}

// Reads one lane's operands one after another.
class Operands {
 public:
  Operands(const Lanes& x, const Slot* slots, uint32_t lane) : x_(x), next_(slots), lane_(lane) {}

  uint32_t word() { return x_.at<uint32_t>(*next_++)[lane_]; }
  template <class T>
  std::array<T, 3> vector(uint32_t axes) {
    std::array<T, 3> values = {};
    for (uint32_t k = 0; k < axes; ++k) values[k] = std::bit_cast<T>(word());
    return values;
  }

 private:
  const Lanes& x_;
  const Slot* next_;
  uint32_t lane_;
};

// Finds the object that a lane names, and checks that its texels may be accessed. Remembers the
// last object, because usually all lanes name the same object.
template <class Object>
class Finder {
 public:
  Finder(Lanes& x, const Instr& i, bool write)
      : x_(x),
        handles_(x.at<uint64_t>(i.a)),
        is_reference_((i.flags & kReference) != 0),
        write_(write) {}

  // nullptr after recording a fault.
  const Object* find(uint32_t lane) {
    uint64_t handle = handles_[lane];
    if (is_reference_ && !load_handle(lane, &handle)) return nullptr;
    if (found_ != nullptr && handle == handle_) return found_;
    found_ = nullptr;
    const Object* object = look_up(handle);
    if (object == nullptr) {
      x_.fault_at(lane, CUDA_ERROR_ILLEGAL_ADDRESS, handle,
                  "no texture or surface object has the handle");
    } else if (!x_.memory->covers(object->begin, object->end, write_)) {
      x_.fault_at(lane, CUDA_ERROR_ILLEGAL_ADDRESS, object->begin,
                  "inaccessible memory in a texture or surface object:");
    } else {
      handle_ = handle;
      found_ = object;
    }
    return found_;
  }

 private:
  // On entry, `*handle` is the address of the variable of a texture or surface reference. On
  // return, it is the handle in that variable.
  bool load_handle(uint32_t lane, uint64_t* handle) {
    const std::byte* variable =
        host_address(x_, lane, ptx::Space::kGlobal, *handle, sizeof *handle, false);
    if (variable == nullptr) return false;
    *handle = __atomic_load_n(reinterpret_cast<const uint64_t*>(variable), __ATOMIC_ACQUIRE);
    return true;
  }
  const Object* look_up(uint64_t handle) const {
    if (x_.textures == nullptr) return nullptr;
    if constexpr (std::is_same_v<Object, Texture>) {
      return x_.textures->texture(handle);
    } else {
      return x_.textures->surface(handle);
    }
  }

  Lanes& x_;
  const uint64_t* handles_;
  const bool is_reference_;
  const bool write_;
  uint64_t handle_ = 0;
  const Object* found_ = nullptr;
};

template <class F>
void for_active_lanes(const Lanes& x, F f) {
  for (uint32_t rest = x.mask; rest != 0; rest &= rest - 1) {
    if (!f(static_cast<uint32_t>(std::countr_zero(rest)))) return;
  }
}

// tex and tld4 for one lane.
texture::Words read(const Texture& object, const TextureAccess& how, Operands operands) {
  const uint32_t layer = is_layered(how.shape) ? operands.word() : 0;
  const uint32_t axes = texture::axes_of(how.shape);
  if (how.integer_coordinates) {
    const auto at = operands.vector<int32_t>(axes);
    const auto level = how.read == TextureRead::kLevel ? static_cast<int32_t>(operands.word()) : 0;
    return texture::fetch(object, how.shape, at, layer, level);
  }
  const texture::Point point{how.shape, operands.vector<float>(axes), layer};
  switch (how.read) {
    case TextureRead::kLevel:
      return texture::sample(object, point, std::bit_cast<float>(operands.word()));
    case TextureRead::kGradient: {
      const auto dx = operands.vector<float>(axes);
      const auto dy = operands.vector<float>(axes);
      return texture::sample(object, point, texture::level_for_steps(object, point, dx, dy));
    }
    case TextureRead::kGather:
      return texture::gather(object, point, how.channel);
    case TextureRead::kPlain:
      break;
  }
  return texture::sample(object, point, texture::kMostDetailed);
}

void read_texture(Lanes& x, const Instr& i) {
  const auto how = from_imm<TextureAccess>(i);
  const Slot* slots = x.lists + i.target;
  Finder<Texture> finder(x, i, false);
  for_active_lanes(x, [&](uint32_t l) {
    const Texture* object = finder.find(l);
    if (object == nullptr) return false;
    const texture::Words words = read(*object, how, Operands(x, slots + how.values, l));
    for (uint32_t k = 0; k < how.values; ++k) x.at<uint32_t>(slots[k])[l] = words[k];
    return true;
  });
  x.set_predicate(i.d, x.mask);  // true even for tiles without memory, which read as zeros
}

// A register of `register_bytes` that holds a value of `value_bytes` in its low bits.
std::byte* value_of(const Lanes& x, Slot slot, const TextureAccess& how, uint32_t lane) {
  return x.at<std::byte>(slot) + size_t{lane} * how.register_bytes;
}

texture::SurfacePoint surface_point(const TextureAccess& how, Operands operands) {
  texture::SurfacePoint point{how.shape, {}, 0};
  if (is_layered(how.shape)) point.layer = operands.word();
  point.at = operands.vector<int32_t>(texture::axes_of(how.shape));
  return point;
}

template <bool kStore>
void access_surface(Lanes& x, const Instr& i) {
  using Outcome = texture::SurfaceAccess::Outcome;
  const auto how = from_imm<TextureAccess>(i);
  const Slot* slots = x.lists + i.target;
  Finder<Surface> finder(x, i, kStore);
  for_active_lanes(x, [&](uint32_t l) {
    const Surface* surface = finder.find(l);
    if (surface == nullptr) return false;
    const uint32_t bytes = uint32_t{how.values} * how.value_bytes;
    const texture::SurfaceAccess access = texture::locate(
        *surface, surface_point(how, Operands(x, slots + how.values, l)), bytes, how.bounds);
    if (access.outcome == Outcome::kOutside) {
      x.fault_at(l, CUDA_ERROR_ILLEGAL_ADDRESS, surface->begin, "access outside of the surface at");
    } else if (access.outcome == Outcome::kMisaligned) {
      x.fault_at(l, CUDA_ERROR_MISALIGNED_ADDRESS, surface->begin,
                 "misaligned coordinate in the surface at");
    }
    if (x.faulted) return false;
    for (uint32_t k = 0; k < how.values; ++k) {
      std::byte* value = value_of(x, slots[k], how, l);
      if (!kStore) std::memset(value, 0, how.register_bytes);
      if (access.outcome == Outcome::kNowhere) continue;
      auto* memory = reinterpret_cast<std::byte*>(access.address) + k * how.value_bytes;
      if (kStore) {
        std::memcpy(memory, value, how.value_bytes);
      } else {
        std::memcpy(value, memory, how.value_bytes);
      }
    }
    return true;
  });
}

// As on an H100, the number of layers is the height of a one-dimensional layered texture, and the
// depth of a two-dimensional one.
uint32_t extent_of(const texture::Image& image, Shape shape, TextureQuery query) {
  switch (query) {
    case TextureQuery::kWidth:
      return image.width;
    case TextureQuery::kHeight:
      return shape == Shape::k1dLayered ? image.slices : image.height;
    case TextureQuery::kDepth:
      break;
  }
  return shape == Shape::k3d || shape == Shape::k2dLayered ? image.slices : 0;
}
uint32_t extent_of(const Texture& object, TextureQuery query) {
  return extent_of(object.levels[0], object.shape, query);
}
// For a surface, the faces of a cube map are layers. A one-dimensional surface has no height.
uint32_t extent_of(const Surface& object, TextureQuery query) {
  if (object.shape == Shape::k1d && query == TextureQuery::kHeight) return 0;
  const Shape shape = texture::is_cube(object.shape) ? Shape::k2dLayered : object.shape;
  return extent_of(object.image, shape, query);
}

template <class Object>
void query(Lanes& x, const Instr& i) {
  Finder<Object> finder(x, i, false);
  uint32_t* d = x.at<uint32_t>(i.d);
  for_active_lanes(x, [&](uint32_t l) {
    const Object* object = finder.find(l);
    if (object == nullptr) return false;
    d[l] = extent_of(*object, static_cast<TextureQuery>(i.imm));
    return true;
  });
}

}  // namespace

Handler texture_handler(Op op) {
  switch (op) {
    case Op::kTexture:
      return read_texture;
    case Op::kTextureQuery:
      return query<Texture>;
    case Op::kSurfaceLoad:
      return access_surface<false>;
    case Op::kSurfaceStore:
      return access_surface<true>;
    case Op::kSurfaceQuery:
      return query<Surface>;
    default:
      return nullptr;
  }
}

}  // namespace softgpu::exec
