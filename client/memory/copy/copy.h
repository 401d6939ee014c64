// Copies of every direction and shape.
//
// Where each side lives decides the way: device memory and page-locked client memory have addresses
// that are valid in the worker, so a copy between them is one posted command; pageable memory goes
// inside the command when it is small and through the staging region otherwise; between servers the
// two workers copy (peer.h).
// Threads: any. Blocking, as CUDA documents it: copies from pageable memory return when the source
// has been read, copies to pageable memory when the destination is written, everything else at once
// unless `synchronous`.
#pragma once

#include <cstddef>

#include <cuda.h>

namespace rcuda::client {

// What the entry point promised about an address; kAny is found out.
enum class Side { kAny, kHost, kDevice };

struct LinearCopy {
  uint64_t destination = 0;
  Side destination_side = Side::kAny;
  uint64_t source = 0;
  Side source_side = Side::kAny;
  size_t bytes = 0;
  CUstream stream = nullptr;
  bool synchronous = true;
  // Asked for as a copy between contexts: the driver then also takes memory of pools that the
  // stream's device has no access to.
  bool peer = false;
};
CUresult copy_linear(const LinearCopy& copy);

// Contexts in `shape` may be null (the current one).
CUresult copy_shape(const CUDA_MEMCPY3D_PEER& shape, CUstream stream, bool synchronous);

}  // namespace rcuda::client
