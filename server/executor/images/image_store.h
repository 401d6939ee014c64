// ImageStore: the images of one session on their way from the client to the driver.
//
// The client queries an image by its hash. An image that is not in the cache is assembled from
// chunks, checked against its hash when complete, and given to the cache. Images stay readable for
// the whole session, because a client queries an image once and may load it any number of times.
// The mapping of an image's file takes address space, and keeps the file's place in the cache.
// Executor thread only. Blocking: the last chunk, for hashing the image (about 1 GB/s) and writing
// it to disk. Errors: the CUresults that a program gets.
#pragma once

#include <cstddef>
#include <cstdint>
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
  explicit ImageStore(ImageCache* cache) : cache_(cache) {}

  // `present`: whether the session has the image. If not, chunks of it are accepted from now on.
  // CUDA_ERROR_OUT_OF_MEMORY if the session has too many incomplete images.
  CUresult query(const Sha256& hash, uint64_t bytes, bool* present);
  // CUDA_ERROR_INVALID_IMAGE if the image was not queried before, or its size or hash is wrong. A
  // repeated chunk is ignored.
  CUresult add_chunk(const Sha256& hash, uint64_t offset, std::span<const std::byte> bytes);
  // A complete image, or nullptr.
  ImagePointer find(const Sha256& hash) const;

  // Memory that a loaded module or library uses until it is unloaded.
  struct Loaded {
    std::vector<const void*> prelinked;  // null-terminated: a program's images after the first
    std::vector<std::byte> wrapper;
  };
  void keep(wire::Kind kind, wire::ObjectId id, std::shared_ptr<Loaded> loaded);
  void release(wire::Kind kind, wire::ObjectId id);

 private:
  struct Assembly {
    // Not zeroed, so that an incomplete image takes only the pages that were received. The hash
    // detects missing chunks.
    std::unique_ptr<std::byte[]> memory;
    uint64_t bytes = 0;
    // Offsets of the chunks received so far. A client that could not send all chunks may start
    // again.
    std::set<uint64_t> offsets;
    uint64_t received = 0;
  };

  ImageCache* cache_;
  std::map<Sha256, Assembly> assemblies_;
  uint64_t assembling_bytes_ = 0;
  std::map<Sha256, ImagePointer> ready_;
  std::map<std::pair<wire::Kind, wire::ObjectId>, std::shared_ptr<Loaded>> loaded_;
};

}  // namespace rcuda::server
