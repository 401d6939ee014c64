#include "softgpu/texture/objects.h"

#include <utility>

namespace softgpu::texture {
namespace {

template <class Map>
auto find_in(const Map& map, uint64_t handle) {
  const auto found = map.find(handle);
  return found == map.end() ? nullptr : found->second.get();
}

}  // namespace

const Texture* Snapshot::texture(uint64_t handle) const { return find_in(textures, handle); }
const Surface* Snapshot::surface(uint64_t handle) const { return find_in(surfaces, handle); }

void Objects::add(uint64_t handle, Texture texture) {
  std::lock_guard lock(mutex_);
  published_ = nullptr;
  objects_.textures[handle] = std::make_shared<const Texture>(std::move(texture));
}

void Objects::add(uint64_t handle, Surface surface) {
  std::lock_guard lock(mutex_);
  published_ = nullptr;
  objects_.surfaces[handle] = std::make_shared<const Surface>(std::move(surface));
}

void Objects::remove(uint64_t handle) {
  std::lock_guard lock(mutex_);
  published_ = nullptr;
  objects_.textures.erase(handle);
  objects_.surfaces.erase(handle);
}

std::shared_ptr<const Snapshot> Objects::snapshot() {
  std::lock_guard lock(mutex_);
  if (published_ == nullptr) published_ = std::make_shared<const Snapshot>(objects_);
  return published_;
}

// Lives as long as the process, like all tables of handles.
Objects& objects() {
  static auto* all = new Objects;
  return *all;
}

}  // namespace softgpu::texture
