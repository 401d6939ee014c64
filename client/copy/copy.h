// Copies of every direction and shape.
//
// The places of source and destination decide how a copy is made. The worker can use addresses of
// device memory and of page-locked client memory, so a copy between them is one posted command.
// Pageable memory travels in the command if it is small, otherwise through the staging region.
// Between servers, the two workers copy (peer.h).
// Threads: any. Blocking, as CUDA documents it: a copy from pageable memory returns when the source
// has been read, a copy to pageable memory when the destination is written. Any other `synchronous`
// copy returns when it has ended, except a copy within the device memory of one context, which
// returns at once. Any other asynchronous copy usually returns at once. In three cases the caller
// waits until the copy has ended: this process makes the copy; the device memory is on one server
// and the stream on another; or an array is copied between servers.
#pragma once

#include <cstddef>

#include <cuda.h>

namespace rcuda::client {

// The kind of memory that the entry point's signature promises for an address. kAny: no promise.
enum class Side { kAny, kHost, kDevice };

struct LinearCopy {
  uint64_t destination = 0;
  Side destination_side = Side::kAny;
  uint64_t source = 0;
  Side source_side = Side::kAny;
  size_t bytes = 0;
  CUstream stream = nullptr;
  bool synchronous = true;
  // A copy between contexts (cuMemcpyPeer*). In such a copy the driver also accepts memory of pools
  // that the stream's device may not access.
  bool peer = false;
};
CUresult copy_linear(const LinearCopy& copy);

// Makes a 2D or 3D copy. A null context in `shape` is the current context.
CUresult copy_shape(const CUDA_MEMCPY3D_PEER& shape, CUstream stream, bool synchronous);

}  // namespace rcuda::client
