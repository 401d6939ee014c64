// The live texture and surface objects of the process, by handle.
//
// The driver chooses the handles, which kernels pass around as numbers. A launch takes a snapshot
// and keeps it while its grid runs: kernels look handles up without a lock, and an object that is
// destroyed meanwhile stays readable. Any thread; one mutex, held briefly.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "softgpu/texture/texture.h"

namespace softgpu::texture {

struct Snapshot {
  std::unordered_map<uint64_t, std::shared_ptr<const Texture>> textures;
  std::unordered_map<uint64_t, std::shared_ptr<const Surface>> surfaces;

  // nullptr if there is none.
  const Texture* texture(uint64_t handle) const;
  const Surface* surface(uint64_t handle) const;
};

class Objects {
 public:
  void add(uint64_t handle, Texture texture);
  void add(uint64_t handle, Surface surface);
  void remove(uint64_t handle);
  std::shared_ptr<const Snapshot> snapshot();

 private:
  std::mutex mutex_;
  Snapshot objects_;
  std::shared_ptr<const Snapshot> published_;  // a copy of objects_; nullptr after a change
};
Objects& objects();

}  // namespace softgpu::texture
