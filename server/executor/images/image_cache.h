// ImageCache: keeps module images on disk, by SHA-256. The workers of a server share the files.
//
// The files are in a FileCache, and are mapped while they are used. The folder must belong to the
// user of the process, and no other user may write to it, because the driver loads images from its
// files (server/worker/user_folders.h). Without a folder, images are kept in memory for their
// session. Threads: any. Blocking: find() and insert(), for the file system.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "common/base/file_cache.h"
#include "common/base/memory_file.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace rcuda::server {

using Sha256 = std::array<uint8_t, 32>;
Sha256 sha256(std::span<const std::byte> bytes);

// An image in memory, followed by at least eight zero bytes: PTX text must end with a zero.
struct CachedImage {
  std::span<const std::byte> bytes() const { return {memory.get(), image_bytes}; }

  Mapped<std::byte> memory;
  size_t image_bytes = 0;
  bool has_file = false;  // false: the image takes memory
};
using ImagePointer = std::shared_ptr<const CachedImage>;

class ImageCache {
 public:
  // `folder`: an open directory; empty: no image is kept on disk.
  ImageCache(UniqueFd folder, uint64_t max_bytes) : files_(std::move(folder), max_bytes) {}

  // Returns nullptr if the image is not on disk.
  ImagePointer find(const Sha256& hash, uint64_t image_bytes);
  // kInvalidArgument if the bytes do not have that hash; kOutOfMemory if there is no memory for an
  // image without a file.
  Result<ImagePointer> insert(const Sha256& hash, std::span<const std::byte> bytes);

 private:
  FileCache files_;
};

}  // namespace rcuda::server
