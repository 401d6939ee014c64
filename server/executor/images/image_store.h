// ImageStore: the images of one session on their way from the client to the driver.
//
// The client asks for an image by its hash. An image that is not in the cache is assembled from
// chunks, checked against its hash when complete, and given to the cache. Images stay readable for
// the whole session, because a client asks once and may load any number of times. A file's mapping
// costs address space only.
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

  // `present`: whether the image is there. If it is not, chunks are expected from now on.
  // CUDA_ERROR_OUT_OF_MEMORY if the session has too many incomplete images.
  CUresult query(const Sha256& hash, uint64_t bytes, bool* present);
  // CUDA_ERROR_INVALID_IMAGE if the image was not announced, or its size or hash is wrong. A chunk
  // that is there already is ignored.
  CUresult add_chunk(const Sha256& hash, uint64_t offset, std::span<const std::byte> bytes);
  // A complete image, or nullptr.
  ImagePointer find(const Sha256& hash) const;

  // What a loaded module or library needs for as long as it lives.
  struct Loaded {
    std::vector<const void*> prelinked;  // NULL-terminated, of a program of several images
    std::vector<std::byte> wrapper;
  };
  void keep(wire::Kind kind, wire::ObjectId id, std::shared_ptr<Loaded> loaded);
  void release(wire::Kind kind, wire::ObjectId id);

 private:
  struct Assembly {
    // Not cleared, so that an announced image takes only the pages that are sent. The hash finds
    // missing chunks.
    std::unique_ptr<std::byte[]> memory;
    uint64_t bytes = 0;
    // Offsets of the chunks so far. A client that could not send all of them may start again.
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
