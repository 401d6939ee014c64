// ImageStore: the images of one session on their way from the client to the driver.
//
// The client asks for an image by hash; one that is not in the cache is assembled from chunks,
// checked against its hash when complete, and given to the cache. Images stay readable for the
// whole session: clients load from one as often as they like after asking once, and a file's
// mapping costs address space only. Executor thread. Completing an image blocks for hashing it
// (about 1 GB/s) and writing it to disk.
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
#include "server/executor/image_cache.h"

namespace rcuda::server {

class ImageStore {
 public:
  explicit ImageStore(ImageCache* cache) : cache_(cache) {}

  // True when it is there; else chunks are expected from now on. CUDA_ERROR_OUT_OF_MEMORY when the
  // session has too much under way.
  CUresult query(const Sha256& hash, uint64_t bytes, bool* present);
  // CUDA_ERROR_INVALID_IMAGE for what was not announced, or does not fit or hash to what was said.
  // A chunk that is there already is taken for the same.
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
    // Not cleared: an image that a client announces costs what it sends. What it leaves out, the
    // hash finds out.
    std::unique_ptr<std::byte[]> memory;
    uint64_t bytes = 0;
    // Where chunks were received: a client that could not send all of them may begin anew.
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
