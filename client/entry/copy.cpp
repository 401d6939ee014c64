// The memcpy family. client/copy makes the copies. Each entry point passes it the kinds of memory
// that the entry point's signature names.

#include "client/copy/copy.h"

#include <cuda.h>

#include "common/cuda/memcpy_shapes.h"

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

namespace {

uint64_t address_of(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

CUresult linear(uint64_t destination, Side destination_side, uint64_t source, Side source_side,
                size_t bytes, CUstream stream, bool synchronous, bool peer = false) {
  LinearCopy copy;
  copy.destination = destination;
  copy.destination_side = destination_side;
  copy.source = source;
  copy.source_side = source_side;
  copy.bytes = bytes;
  copy.stream = stream;
  copy.synchronous = synchronous;
  copy.peer = peer;
  return copy_linear(copy);
}

// One end of the copy of a row: in an array, on a device or in host memory.
struct RowEnd {
  CUmemorytype type;
  CUarray array = nullptr;
  size_t offset_bytes = 0;
  CUdeviceptr device = 0;
  void* host = nullptr;
};

RowEnd in(CUarray array, size_t offset_bytes) { return {CU_MEMORYTYPE_ARRAY, array, offset_bytes}; }

RowEnd in_device(CUdeviceptr address) { return {.type = CU_MEMORYTYPE_DEVICE, .device = address}; }

RowEnd in_host(const void* address) {
  return {.type = CU_MEMORYTYPE_HOST, .host = const_cast<void*>(address)};
}

CUresult copy_row(const RowEnd& to, const RowEnd& from, size_t bytes, CUstream stream,
                  bool synchronous) {
  CUDA_MEMCPY3D_PEER shape{};
  shape.WidthInBytes = bytes;
  shape.Height = shape.Depth = 1;
  shape.srcMemoryType = from.type;
  shape.srcArray = from.array;
  shape.srcXInBytes = from.offset_bytes;
  shape.srcDevice = from.device;
  shape.srcHost = from.host;
  shape.dstMemoryType = to.type;
  shape.dstArray = to.array;
  shape.dstXInBytes = to.offset_bytes;
  shape.dstDevice = to.device;
  shape.dstHost = to.host;
  return copy_shape(shape, stream, synchronous);
}

}  // namespace

extern "C" {

// ---- linear ------------------------------------------------------------------------------------

CUresult cuMemcpy(CUdeviceptr destination, CUdeviceptr source, size_t bytes) {
  return linear(destination, Side::kAny, source, Side::kAny, bytes, nullptr, true);
}

CUresult cuMemcpyAsync(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream) {
  return linear(destination, Side::kAny, source, Side::kAny, bytes, stream, false);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr destination, const void* source, size_t bytes) {
  return linear(destination, Side::kDevice, address_of(source), Side::kHost, bytes, nullptr, true);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr destination, const void* source, size_t bytes,
                              CUstream stream) {
  return linear(destination, Side::kDevice, address_of(source), Side::kHost, bytes, stream, false);
}

CUresult cuMemcpyDtoH_v2(void* destination, CUdeviceptr source, size_t bytes) {
  return linear(address_of(destination), Side::kHost, source, Side::kDevice, bytes, nullptr, true);
}

CUresult cuMemcpyDtoHAsync_v2(void* destination, CUdeviceptr source, size_t bytes,
                              CUstream stream) {
  return linear(address_of(destination), Side::kHost, source, Side::kDevice, bytes, stream, false);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr destination, CUdeviceptr source, size_t bytes) {
  return linear(destination, Side::kDevice, source, Side::kDevice, bytes, nullptr, true);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr destination, CUdeviceptr source, size_t bytes,
                              CUstream stream) {
  return linear(destination, Side::kDevice, source, Side::kDevice, bytes, stream, false);
}

// The contexts are not needed: the addresses determine them.
CUresult cuMemcpyPeer(CUdeviceptr destination, CUcontext, CUdeviceptr source, CUcontext,
                      size_t bytes) {
  return linear(destination, Side::kDevice, source, Side::kDevice, bytes, nullptr, true, true);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr destination, CUcontext, CUdeviceptr source, CUcontext,
                           size_t bytes, CUstream stream) {
  return linear(destination, Side::kDevice, source, Side::kDevice, bytes, stream, false, true);
}

// ---- shapes ------------------------------------------------------------------------------------

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* copy) {
  return copy ? copy_shape(rcuda::cuda::peer_shape(*copy), nullptr, true)
              : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* copy) { return cuMemcpy2D_v2(copy); }

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
  return copy ? copy_shape(rcuda::cuda::peer_shape(*copy), stream, false)
              : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* copy) {
  return copy ? copy_shape(rcuda::cuda::peer_shape(*copy), nullptr, true)
              : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, CUstream stream) {
  return copy ? copy_shape(rcuda::cuda::peer_shape(*copy), stream, false)
              : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* copy) {
  return copy ? copy_shape(*copy, nullptr, true) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* copy, CUstream stream) {
  return copy ? copy_shape(*copy, stream, false) : CUDA_ERROR_INVALID_VALUE;
}

// ---- one-dimensional array copies --------------------------------------------------------------

CUresult cuMemcpyHtoAAsync_v2(CUarray destination, size_t offset, const void* source, size_t bytes,
                              CUstream stream) {
  return copy_row(in(destination, offset), in_host(source), bytes, stream, false);
}

CUresult cuMemcpyHtoA_v2(CUarray destination, size_t offset, const void* source, size_t bytes) {
  return copy_row(in(destination, offset), in_host(source), bytes, nullptr, true);
}

CUresult cuMemcpyAtoHAsync_v2(void* destination, CUarray source, size_t offset, size_t bytes,
                              CUstream stream) {
  return copy_row(in_host(destination), in(source, offset), bytes, stream, false);
}

CUresult cuMemcpyAtoH_v2(void* destination, CUarray source, size_t offset, size_t bytes) {
  return copy_row(in_host(destination), in(source, offset), bytes, nullptr, true);
}

CUresult cuMemcpyDtoA_v2(CUarray destination, size_t offset, CUdeviceptr source, size_t bytes) {
  return copy_row(in(destination, offset), in_device(source), bytes, nullptr, true);
}

CUresult cuMemcpyAtoD_v2(CUdeviceptr destination, CUarray source, size_t offset, size_t bytes) {
  return copy_row(in_device(destination), in(source, offset), bytes, nullptr, true);
}

CUresult cuMemcpyAtoA_v2(CUarray destination, size_t destination_offset, CUarray source,
                         size_t source_offset, size_t bytes) {
  return copy_row(in(destination, destination_offset), in(source, source_offset), bytes, nullptr,
                  true);
}

}  // extern "C"
