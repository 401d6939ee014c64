// Where an address lives, seen from a copy.
#pragma once

#include <cuda.h>

#include <cstddef>

#include "client/memory/copy.h"
#include "client/session/marshal.h"

namespace rcuda::client {

enum class Home {
  kPageable,  // this process only
  kExposed,   // page-locked client memory that every worker has at the same address
  kDevice,    // the memory of `owner`'s worker
};

struct Location {
  Home home = Home::kPageable;
  Target owner;  // kDevice: session, a context there, device
};

// CUDA_ERROR_INVALID_VALUE when [address, address + bytes) runs out of its allocation, or is not what
// `side` promises.
CUresult locate(uint64_t address, size_t bytes, Side side, Location* location);

}  // namespace rcuda::client
