// Parts shared by the generated code of both sides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <cuda.h>

#include "common/cuda/errors.h"
#include "common/wire/protocol.h"

namespace rcuda::api {

// Converts a handle of the driver to a pointer. Some handles are numbers
// (CUmemGenericAllocationHandle).
template <typename Handle>
void* to_pointer(Handle handle) {
  if constexpr (std::is_pointer_v<Handle>) {
    return handle;
  } else {
    return reinterpret_cast<void*>(static_cast<uintptr_t>(handle));
  }
}
template <typename Handle>
Handle from_pointer(void* pointer) {
  if constexpr (std::is_pointer_v<Handle>) {
    return static_cast<Handle>(pointer);
  } else {
    return static_cast<Handle>(reinterpret_cast<uintptr_t>(pointer));
  }
}

// A CUfunction parameter. The application may pass a CUkernel instead.
struct FunctionId {
  wire::ObjectId id = 0;
  uint32_t is_kernel = 0;
};

// The most bytes that one reply may carry.
inline constexpr size_t kMaxReplyBytes =
    wire::ClientWindow::kLargeReplyBytes - sizeof(wire::ReplyHeader) - sizeof(uint64_t);

// Whether an object no longer exists after a call that destroys it. The object still exists if the
// driver refused the call. Client and worker both use this function.
inline bool is_gone(CUresult result) {
  return result == CUDA_SUCCESS || cuda::is_sticky(result) ||
         result == CUDA_ERROR_DEVICE_UNAVAILABLE;  // the session is lost
}

// The length of an array with one element for each dimension of a tensor map, except `fewer`
// dimensions. 0 if the rank is invalid; the driver then refuses the call.
inline size_t tensor_elements(cuuint32_t rank, cuuint32_t fewer) {
  constexpr cuuint32_t kMaxDimensions = 5;
  return rank > kMaxDimensions || rank < fewer ? 0 : rank - fewer;
}

// Returns the size of the attribute's value in bytes, for length expressions of api/table.
inline size_t pool_attribute_bytes(CUmemPool_attribute attribute) {
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      return sizeof(int);
    default:
      return sizeof(cuuint64_t);
  }
}

}  // namespace rcuda::api
