// HostMemory: memory of the client that the GPUs can reach, at the address it has in the client.
//
// Over shared memory the client's pages are mapped here and registered with CUDA: one memory,
// nothing to move. Elsewhere the worker has page-locked memory of its own at the same address, a
// shadow, and shadow_copy.h moves the bytes over the Link when a stream gets there. Executor
// thread. expose() blocks for mapping and registration (15 ms for 256 MB).
#pragma once

#include <cstdint>
#include <map>

#include <cuda.h>

#include "common/wire/protocol.h"

namespace rcuda::server {

class Executor;

class HostMemory {
 public:
  struct Range {
    uint64_t bytes = 0;
    uint64_t region = 0;
    bool shadow = false;  // the client's bytes are elsewhere
    bool mapped = false;  // here; not when the client shares this address space
  };

  explicit HostMemory(Executor& executor) : executor_(executor) {}
  ~HostMemory();

  CUresult expose(const wire::HostExposeBody& body);
  CUresult unexpose(const wire::HostUnexposeBody& body);

  // The one exposed range that holds [address, address + bytes), or nullptr.
  const Range* find(uint64_t address, uint64_t bytes, uint64_t* base = nullptr) const;

 private:
  bool may_map(uint64_t address, uint64_t bytes) const;
  CUresult place(uint64_t address, uint64_t bytes, Range* range);
  void take_away(uint64_t address, const Range& range);
  void release(uint64_t address, const Range& range);

  Executor& executor_;
  std::map<uint64_t, Range> ranges_;  // by address; they do not overlap
};

}  // namespace rcuda::server
