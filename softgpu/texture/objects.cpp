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

uint64_t Objects::add(Texture texture) {
  std::lock_guard lock(mutex_);
  published_ = nullptr;
  objects_.textures.emplace(++last_handle_, std::make_shared<const Texture>(std::move(texture)));
  return last_handle_;
}

uint64_t Objects::add(const Surface& surface) {
  std::lock_guard lock(mutex_);
  published_ = nullptr;
  objects_.surfaces.emplace(++last_handle_, std::make_shared<const Surface>(surface));
  return last_handle_;
}

void Objects::remove(uint64_t handle) {
  std::lock_guard lock(mutex_);
  removed_.push_back(handle);
  if (removed_.size() <= kKept) return;
  published_ = nullptr;
  objects_.textures.erase(removed_.front());
  objects_.surfaces.erase(removed_.front());
  removed_.pop_front();
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
