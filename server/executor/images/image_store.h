// ImageStore: the images of one session on their way from the client to the driver.
//
// The client queries an image by its hash. An image that is not in the cache is assembled from
// chunks, checked against its hash when complete, and passed to the cache. The mapping of an
// image's file lasts as long as the session: it takes address space, and keeps the file in the
// cache. An image without a file takes memory that no quota counts. So when no module or library
// uses such images any more, only the most recently used are kept, up to `most_unused` bytes. The
// client sends a dropped image again when it needs it. kMaxUnloadedBytes limits the total size of
// incomplete images and of complete images without a file that were not loaded since they were last
// queried. Executor thread only. Blocking: the last chunk, for hashing the image (about 1 GB/s) and
// writing it to disk. Errors: the CUresults that a program gets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <cuda.h>

#include "common/wire/protocol.h"
#include "server/executor/images/image_cache.h"

namespace rcuda::server {

class ImageStore {
 public:
  static constexpr uint64_t kMostUnusedBytes = 256u << 20;

  explicit ImageStore(ImageCache* cache, uint64_t most_unused = kMostUnusedBytes)
      : cache_(cache), most_unused_(most_unused) {}

  // `present`: whether the session has the image. If not, chunks of it are accepted from now on.
  // CUDA_ERROR_OUT_OF_MEMORY beyond kMaxUnloadedBytes, or if the host has no memory.
  // CUDA_ERROR_INVALID_IMAGE if the image is empty or larger than kMaxImageBytes.
  CUresult query(const Sha256& hash, uint64_t bytes, bool* present);
  // CUDA_ERROR_INVALID_IMAGE if the image was not queried before, if its size or hash is wrong, or
  // if there is no memory for the complete image. A repeated chunk is ignored.
  CUresult add_chunk(const Sha256& hash, uint64_t offset, std::span<const std::byte> bytes);
  // A complete image, or nullptr. The image lasts as long as the result.
  ImagePointer find(const Sha256& hash) const;
  // To be called when the image is loaded. From now on drop_unused() may drop it.
  void note_use(const Sha256& hash);

  // Memory that a loaded module or library uses until it is unloaded.
  struct Loaded {
    std::vector<ImagePointer> images;
    std::vector<const void*> prelinked;  // null-terminated: a program's images after the first
    std::vector<std::byte> wrapper;
  };
  void keep(wire::Kind kind, wire::ObjectId id, std::shared_ptr<Loaded> loaded);
  std::shared_ptr<Loaded> release(wire::Kind kind, wire::ObjectId id);
  // Drops the oldest unused images beyond `most_unused`. `exists`: whether the session still has an
  // object, which may have ended with its context.
  void drop_unused(const std::function<bool(wire::Kind, wire::ObjectId)>& exists);

 private:
  struct Ready {
    ImagePointer image;
    uint64_t last_use = 0;  // 0: it was not loaded since the last query
  };
  struct Assembly {
    // The memory is not zeroed, so that an incomplete image takes only the pages that were
    // received. The hash detects missing chunks.
    std::unique_ptr<std::byte[]> memory;
    uint64_t bytes = 0;
    // Offsets of the chunks received so far. A client that could not send all chunks may start
    // again, and repeated chunks must not count twice.
    std::set<uint64_t> offsets;
    uint64_t received = 0;
  };

  ImageCache* const cache_;
  const uint64_t most_unused_;
  std::map<Sha256, Assembly> assemblies_;
  // The memory of images that were not loaded since the last query, complete or incomplete.
  uint64_t unloaded_bytes_ = 0;
  uint64_t memory_bytes_ = 0;  // of all complete images without a file
  uint64_t uses_ = 0;
  std::map<Sha256, Ready> ready_;
  std::map<std::pair<wire::Kind, wire::ObjectId>, std::shared_ptr<Loaded>> loaded_;
};

}  // namespace rcuda::server
