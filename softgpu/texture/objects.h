// The texture and surface objects of the process, by handle.
//
// A handle is a number that kernels pass around; it is never used twice. Kernels look handles up
// without a lock, in a snapshot that their launch takes when it begins. A program may destroy an
// object while kernels that use it are still queued (CuPy does). As on hardware, the object then
// stays readable: here until kKept further objects have been destroyed. Any thread; one mutex, held
// briefly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "softgpu/texture/texture.h"

namespace softgpu::texture {

struct Snapshot {
  std::unordered_map<uint64_t, std::shared_ptr<const Texture>> textures;
  std::unordered_map<uint64_t, std::shared_ptr<const Surface>> surfaces;

  // nullptr for an unknown handle.
  const Texture* texture(uint64_t handle) const;
  const Surface* surface(uint64_t handle) const;
};

class Objects {
 public:
  static constexpr size_t kKept = 256;

  // Both return the new handle.
  uint64_t add(Texture texture);
  uint64_t add(const Surface& surface);
  // Call it once for each handle.
  void remove(uint64_t handle);
  std::shared_ptr<const Snapshot> snapshot();

 private:
  std::mutex mutex_;
  uint64_t last_handle_ = 0;
  Snapshot objects_;
  std::deque<uint64_t> removed_;               // still in objects_; the oldest first
  std::shared_ptr<const Snapshot> published_;  // a copy of objects_; nullptr after a change
};
Objects& objects();

}  // namespace softgpu::texture
