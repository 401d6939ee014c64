// Finds the place of a copy's memory, and the stream in which a worker makes the copy.
#pragma once

#include <cstddef>
#include <optional>

#include <cuda.h>

#include "client/copy/copy.h"
#include "client/route/find_route.h"

namespace rcuda::client {

enum class Home {
  kPageable,  // memory that this process's CPU copies; workers may have a mirror of it
  kExposed,   // page-locked client memory that every worker has at the same address
  kDevice,    // the memory of `owner`'s worker
};

struct Location {
  Home home = Home::kPageable;
  std::optional<Route> owner;  // kDevice: the worker, and a context there
  bool of_pool = false;
  bool sync_memops = false;  // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
  uint64_t first = 0;        // address of the first byte; 0 for an array
  size_t bytes = 0;
};

// Fills *location, which must be default-constructed. Returns CUDA_ERROR_INVALID_VALUE if the range
// exceeds its allocation, has a device address that is not allocated, or is not the kind of memory
// that `side` promises. The range may exceed a mapping of cuMemMap, because adjacent mappings may
// follow.
CUresult locate(uint64_t address, size_t bytes, Side side, Location* location);

// The extent of a 2D or 3D copy: bytes per row, rows per slice, and slices.
struct Extent {
  size_t width_bytes = 0, height = 0, depth = 0;
};
bool is_real(const Extent& extent);  // false if a number is larger than any memory
// Returns the address of the first copied byte of a row. Not for arrays.
uint64_t row_address(const wire::CopyShapeSide& side, size_t y, size_t z);
// Like locate(), for all rows of a copy. Sets the pitch and the height of `side` if they are 0.
CUresult locate_rows(const Extent& extent, Side promised, wire::CopyShapeSide* side,
                     Location* location);

// The stream in which a copy runs, on the worker that owns the device memory. stream_at() finds it.
// `handle`: the stream in which the application issued the copy. `owner`: the context that owns
// the device memory; nullopt: the copy has no device memory. stream_at() blocks while the queue of
// the stream is full. If `handle` is a stream of another session, stream_at() also waits for that
// stream, and the copy runs in the owner's default stream.
struct CopyStream {
  StreamRoute route;
  bool is_elsewhere = false;  // the copy was issued in another session's stream
};
CudaResult<CopyStream> stream_at(const std::optional<Route>& owner, CUstream handle);

// Whether the memory belongs to a pool of another device than the stream's. The driver then checks
// the access rights of the pool, so the caller waits for the answer and returns the driver's error.
inline bool needs_access(const Location& location, const CopyStream& stream) {
  return location.of_pool && location.owner->device != stream.route.device;
}

}  // namespace rcuda::client
