// Where an address lives, and in which stream its worker copies, seen from a copy.
#pragma once

#include <cstddef>

#include <cuda.h>

#include "client/calls/marshal.h"
#include "client/memory/copy/copy.h"

namespace rcuda::client {

enum class Home {
  kPageable,  // this process only
  kExposed,   // page-locked client memory that every worker has at the same address
  kDevice,    // the memory of `owner`'s worker
};

struct Location {
  Home home = Home::kPageable;
  Target owner;  // kDevice: session, a context there, device
  bool of_pool = false;
  uint64_t first = 0;  // what was asked for; of an array nothing
  size_t bytes = 0;
};

// CUDA_ERROR_INVALID_VALUE when [address, address + bytes) runs out of its allocation, or is not
// what `side` promises.
CUresult locate(uint64_t address, size_t bytes, Side side, Location* location);

// The stream a copy runs in on the worker that owns the device memory (`owner` without session:
// any). A copy issued in another session's stream waits for that stream first, and then runs in the
// owner's default stream.
struct CopyStream {
  Target target;
  bool is_elsewhere = false;  // the copy was issued in another session's stream
};
CUresult stream_at(const Target& owner, CUstream handle, CopyStream* stream);

// Whether the driver judges by a pool's access if the stream may copy there: to be asked, so that a
// refusal comes from the call itself.
inline bool needs_access(const Location& location, const CopyStream& stream) {
  return location.of_pool && location.owner.device != stream.target.device;
}

}  // namespace rcuda::client
