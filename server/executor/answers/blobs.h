// Blobs: keeps data that did not fit into a reply (api/blob.h) until the client has read it.
//
// A client need not read its blobs to the end. So when the blobs are too many or too large, the
// oldest are dropped. Executor thread only; nothing blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>

#include "api/blob.h"

namespace rcuda::server {

class Blobs {
 public:
  static constexpr size_t kMost = 1024;

  // Returns the blob's number, which is never 0.
  uint32_t keep(api::Blob blob);
  // Returns at most `room` bytes from `offset` on; none if the blob does not exist or has no bytes
  // there.
  std::span<const std::byte> read(uint32_t number, uint64_t offset, size_t room) const;
  // To be called when the client has read up to `end`. Drops the blob if it ends there.
  void drop_at(uint32_t number, uint64_t end);

 private:
  uint32_t last_ = 0;
  uint64_t bytes_ = 0;
  std::map<uint32_t, api::Blob> blobs_;  // by number, the oldest first
};

}  // namespace rcuda::server
