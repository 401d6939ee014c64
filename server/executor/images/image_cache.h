// ImageCache: module images by SHA-256, on disk, shared by the workers of a server.
//
// The files are in a FileCache, mapped while they are used. Its folder must belong to the user of
// the process, and no other user may write it, because its files are passed to the driver
// (server/worker/image_folder.h). If no directory can be used, images are kept in memory for their
// session, and the reason is logged once.
// Threads: any; sessions share one object. Blocking: find() and insert(), for the file system.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/base/file_cache.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace rcuda::server {

using Sha256 = std::array<uint8_t, 32>;
Sha256 sha256(std::span<const std::byte> bytes);
std::string to_hex(const Sha256& hash);

// An image in memory, followed by at least eight zero bytes: PTX text has to end in one.
class CachedImage {
 public:
  CachedImage(void* mapping, size_t mapped_bytes, size_t image_bytes, bool with_file)
      : has_file(with_file),
        mapping_(mapping),
        mapped_bytes_(mapped_bytes),
        image_bytes_(image_bytes) {}
  ~CachedImage();
  CachedImage(const CachedImage&) = delete;
  CachedImage& operator=(const CachedImage&) = delete;

  const bool has_file;  // false: it takes memory
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(mapping_), image_bytes_};
  }

 private:
  void* mapping_;
  size_t mapped_bytes_;
  size_t image_bytes_;
};
using ImagePointer = std::shared_ptr<const CachedImage>;

class ImageCache {
 public:
  // `folder`: an open directory; none: no image is kept on disk.
  ImageCache(UniqueFd folder, uint64_t max_bytes);
  // Makes and opens the directory. An empty path: no image is kept on disk.
  ImageCache(const std::string& directory, uint64_t max_bytes);

  // Returns nullptr if the image is not on disk.
  ImagePointer find(const Sha256& hash, uint64_t image_bytes);
  // kInvalidArgument if the bytes do not have that hash.
  Result<ImagePointer> insert(const Sha256& hash, std::span<const std::byte> bytes);

  bool keeps_images() const { return files_.keeps_files(); }

 private:
  FileCache files_;
};

// The directory for images unless the settings name another: the service's cache directory under
// systemd, else $XDG_CACHE_HOME/rcuda or ~/.cache/rcuda, else none.
std::string default_image_directory();

}  // namespace rcuda::server
